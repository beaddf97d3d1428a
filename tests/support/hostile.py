"""Texts that break careless programs: for every entry that takes a name, a path, a ref expression or a URI.

What an entry owes each of them: an error of ours, or the same text back, byte for byte. Never another error, never a
long wait, never a message that is not one line.
"""

_PATHS = r"""
/ // a//b . .. ./ ../ a/../b a/./b /a a/ /etc/passwd ../../etc/passwd ..\..\windows C:\x C: \ \\host\share ~ ~root
%2e%2e%2f %00 %0a %2F %252e%252e ..%c0%af ....// ;/.. a/.. file:///etc/passwd data/x data/../_lakefs/ _lakefs/
_lakefs/repository.json _lakefs/ranges/x.parquet ns2 CON NUL COM1 aux.txt a. a: a:b .hidden .git/config -rf --help - *
a*b a?b [a] {a,b} $HOME ${HOME} $(id) `id` |id ;id &&id >x <x !x #x ?x ?versionId=1 a&b=c a=b a+b a%20b 'x' "x" a,b
"""

_NAMES = r"""
@ HEAD head @{1} @{-1} @{u} main@{yesterday} main@{0} main@ main@@ @main @~1 @^ a..b a...b ..a a.. .a a.lock a.lock.lock
.lock a/b refs/heads/main heads/main origin/main -x -- --all ^main ~main main~ main^ main~0 main^0 main^2^2~3
main~999999999999 main^999999999999 main~-1 main^-1 main^{} main^{commit} main^{/fix} main^@ main^! :/fix main:path
main@$~ main$ main@~1 main~1@ main~1~ main~^~^ main~x main~1x main~+1 main~0x1 main~1_000 main~1e3 main~1.0 main^^^^^^
deadbeef DEADBEEF 0 f 00000000 null None true false undefined NaN inf 1e999 2147483648 -1 0x10 main,dev main;dev main
"""

_INJECTIONS = [
    "'; drop table commits; --", '" or "1"="1', "a%", "a_", "\\'", "a' || 'b", "<script>alert(1)</script>",
    "javascript:alert(1)", "=cmd|' /C calc'!A0", "{{ 7*7 }}", "{x.__class__}", "%s%n%x", "${jndi:ldap://x}",
    "a\r\nSet-Cookie: x=1", "[link=http://x]y[/link]", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", '{"a": 1, "a": 2}',
    "!!python/object:os.system", "gASVCgAAAAAAAACMBm9zLnN5", "http://169.254.169.254/latest/meta-data",
    "http://user:password@localhost/", "s3://bucket/key", "gopher://x", "lakefs://", "lakefs:///", "lakefs:////",
    "lakefs://repo", "lakefs://repo/main", "lakefs://repo//x", "lakefs://repo/main/../../other/main/x",
    "lakefs://repo@host/main/x", "lakefs://repo:80/main/x", "lakefs://[::1]/main", "lakefs://REPO/main",
    "lakefs:repo/main",
]  # fmt: skip

_UNICODE = [
    "é",
    "e\u0301",
    "\u212b",
    "ﬁ",
    "\u0131",
    "İ",
    "ß",
    "\u017f",
    "K",
    "\u043cain",  # A Cyrillic letter that looks like m.
    "ma\u200bin",
    "main\u200d",
    "\ufeffmain",
    "\u202egnp.exe",
    "\u2066main\u2069",
    "main\u00a0",
    "\u2003",
    "\u2028",
    "\u2029",
    "\x85",
    "\u3000",
    "日本語",
    "🦆",
    "👩\u200d👩\u200d👧",
    "🇩🇪",
    "\ue000",
    "\ufffd",
    "\ufffe",
    "\uffff",
    "\U0001f986",
    "\U0010ffff",
    "\ud800",
    "\udfff",
    "a\udc80b",
    "\ud83e\udd86",
    "a\u0300" + "\u0301" * 60,
    "\u0661\u0662\u0663",
    "main~\u0661",
    "main^\u00b2",
    "main~\uff11",
    "deadbee\uff46",
]

_CONTROLS = [f"a{chr(code)}b" for code in (*range(0x20), 0x7F, 0x80, 0x9B, 0x9F)] + [
    "\0",
    " ",
    "  ",
    "\n",
    "a\n",
    "\ta",
    "a ",
]

_SIZES = [
    "",
    "x" * 63,
    "x" * 64,
    "x" * 255,
    "x" * 256,
    "x" * 500,
    "x" * 1024,
    "x" * 1025,
    "é" * 512,
    "é" * 513,
    "🦆" * 256,
    "🦆" * 257,
    "🦆" * 1024,
    "a/" * 512,
    "a" * 300 + "/b",
    "x" * 1_000_000,
    "0" * 64,
    "f" * 64,
    "F" * 64,
    "f" * 63,
    "f" * 65,
    "main" + "^" * 1000,
    "main" + "^" * 100_000,
    "main" + "~9" * 1000,
    "main~" + "9" * 18,
    "main~" + "9" * 19,
    "main~" + "9" * 5000,
    "main^" + "0" * 5000,
    "main~9223372036854775807",
    "main~9223372036854775808",
    "main^4294967297",
    "." * 1000,
    "/" * 1024,
    "@" * 300,
    "lakefs://" * 50,
    "lakefs://repo/main/" + "x" * 1025,
    "lakefs://repo/" + "x" * 100_000,
]

HOSTILE: list[str] = list(
    dict.fromkeys([*_PATHS.split(), *_NAMES.split(), *_INJECTIONS, *_UNICODE, *_CONTROLS, *_SIZES])
)
"""More than 300 different texts."""
