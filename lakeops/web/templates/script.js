(function(){
  var root=document.documentElement, outer=null;
  try{ if(parent!==window){ outer=parent.document.documentElement; } }catch(e){ outer=null; }
  function follow(){
    var dark=outer.classList.contains('dark')||outer.dataset.theme==='dark';
    root.dataset.theme=dark?'dark':'light';
  }
  if(outer){ follow(); new MutationObserver(follow).observe(outer,{attributes:true,attributeFilter:['class','data-theme']}); }
  document.addEventListener('DOMContentLoaded',function(){
    document.querySelectorAll('.tabs [aria-current]').forEach(function(tab){
      tab.parentNode.scrollLeft=tab.offsetLeft-tab.parentNode.offsetLeft-16;
    });
    document.querySelectorAll('[data-copy]').forEach(function(button){
      button.hidden=!navigator.clipboard;
      button.addEventListener('click',function(){
        navigator.clipboard.writeText(button.dataset.copy).then(function(){ button.textContent='copied'; });
      });
    });
    document.addEventListener('keydown',function(event){
      if(event.key==='/'&&!/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)){
        var field=document.querySelector('main input[type=search]')||document.querySelector('input[type=search]');
        if(field){ event.preventDefault(); field.focus(); field.select(); }
      }
    });
    function leave(address){
      if(!outer){ location.assign(address); return; }
      parent.history.pushState({},'',address);
      parent.dispatchEvent(new PopStateEvent('popstate'));
    }
    if(outer){ document.querySelectorAll('a[data-airflow]').forEach(function(link){
      link.addEventListener('click',function(event){ event.preventDefault(); leave(link.getAttribute('href')); });
    }); }
    var values={
      checkbox:function(field){ return field.checked; },
      number:function(field){ return field.value===''?null:Number(field.value); },
      text:function(field){ return field.value===''?null:field.value; }
    };
    document.querySelectorAll('form[data-trigger]').forEach(function(form){
      var button=form.querySelector('button'), problem=form.querySelector('[role=alert]');
      function refuse(text){ problem.textContent=text; problem.hidden=false; button.disabled=false; }
      button.hidden=false;
      form.addEventListener('submit',function(event){
        event.preventDefault();
        var conf={};
        form.querySelectorAll('[data-kind]').forEach(function(field){ conf[field.name]=values[field.dataset.kind](field); });
        button.disabled=true; problem.hidden=true;
        fetch(form.dataset.trigger,{method:'POST',headers:{'Content-Type':'application/json'},
          body:JSON.stringify({logical_date:null,conf:conf})}).then(function(answer){
          return answer.json().then(function(said){
            if(answer.ok){ leave(form.dataset.runs+encodeURIComponent(said.dag_run_id)); }
            else{ refuse(typeof said.detail==='string'?said.detail.split('\n')[0]:JSON.stringify(said.detail)); }
          });
        }).catch(function(){ refuse('Airflow did not answer. Try again in a while.'); });
      });
    });
  });
})();
