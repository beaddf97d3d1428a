(function(){
  var root=document.documentElement, outer=null;
  try{ if(parent!==window){ outer=parent.document.documentElement; } }catch(e){ outer=null; }
  function follow(){
    var dark=outer.classList.contains('dark')||outer.dataset.theme==='dark';
    root.dataset.theme=dark?'dark':'light';
  }
  if(outer){ follow(); new MutationObserver(follow).observe(outer,{attributes:true,attributeFilter:['class','data-theme']}); }
  document.addEventListener('DOMContentLoaded',function(){
    document.querySelectorAll('[data-copy]').forEach(function(button){
      button.hidden=!navigator.clipboard;
      button.addEventListener('click',function(){
        navigator.clipboard.writeText(button.dataset.copy).then(function(){ button.textContent='copied'; });
      });
    });
    document.addEventListener('keydown',function(event){
      if(event.key==='/'&&!/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)){
        var field=document.querySelector('input[type=search]');
        if(field){ event.preventDefault(); field.focus(); field.select(); }
      }
    });
    if(outer){ document.querySelectorAll('a[data-airflow]').forEach(function(link){
      link.addEventListener('click',function(event){
        event.preventDefault();
        parent.history.pushState({},'',link.getAttribute('href'));
        parent.dispatchEvent(new PopStateEvent('popstate'));
      });
    }); }
  });
})();
