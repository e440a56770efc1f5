"""Strings that break pages without escaping: each must be shown as text."""

from __future__ import annotations

_SCRIPT = "window.hacked=1"

HOSTILE: tuple[str, ...] = (
    # markup
    f"<script>{_SCRIPT}</script>",
    f"</script><script>{_SCRIPT}</script>",
    f"<img src=x onerror={_SCRIPT}>",
    f"<img src='https://example.invalid/x.png' onload='{_SCRIPT}'>",
    f"<svg><script>{_SCRIPT}</script></svg>",
    f"<iframe srcdoc='<script>parent.{_SCRIPT}</script>'></iframe>",
    "<object data='https://example.invalid/'></object>",
    "<link rel=stylesheet href='https://example.invalid/x.css'>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "<base href='https://example.invalid/'>",
    "<form action='https://example.invalid/'><input autofocus onfocus=window.hacked=1></form>",
    f"<body onload={_SCRIPT}>",
    f"<math><mtext></mtext><script>{_SCRIPT}</script></math>",
    f"<noscript><p title='</noscript><img src=x onerror={_SCRIPT}>'>",
    f"<template><script>{_SCRIPT}</script></template>",
    f"</title><script>{_SCRIPT}</script>",
    f"</style><script>{_SCRIPT}</script>",
    f"</pre></code><script>{_SCRIPT}</script>",
    "</td></tr></table><h1>out</h1>",
    "</main></body></html><p>after",
    "<!-- comment -->",
    f"<!--><script>{_SCRIPT}</script-->",
    "<![CDATA[<b>x</b>]]>",
    "<a href='javascript:window.hacked=1'>x</a>",
    "x<y && y>z",
    # quotes and attributes
    '"',
    "'",
    "`",
    f'" onmouseover="{_SCRIPT}',
    f"' onfocus='{_SCRIPT}' autofocus='",
    f'"><script>{_SCRIPT}</script>',
    f"'><script>{_SCRIPT}</script>",
    'x" style="position:fixed;inset:0',
    "\\",
    # entities
    "&",
    "&amp;",
    "&lt;b&gt;",
    "&#60;script&#62;",
    "&notanentity;",
    # templates and interpolation
    "{{7*7}}",
    "{% raw %}{{ x }}{% endraw %}",
    "{{ ''.__class__ }}",
    "${7*7}",
    "$HOME `id` $(id)",
    # scripts in data
    f"\u2028{_SCRIPT}\u2029",
    f"]]}};{_SCRIPT};//",
    "__proto__",
    "constructor",
    "NaN",
    # style
    "} body { display: none } .x {",
    "url(https://example.invalid/x.png)",
    "@import 'https://example.invalid/x.css';",
    # addresses
    f"javascript:{_SCRIPT}",
    f"java\tscript:{_SCRIPT}",
    "data:text/html,<script>window.hacked=1</script>",
    "//example.invalid/x",
    "https://example.invalid/?a=1&b=2#c",
    "\\\\example.invalid\\x",
    "../../../../etc/passwd",
    "#claims",
    # letters
    "\u202eright to left\u202c",
    "\u2066isolated\u2069 \u05e9\u05dc\u05d5\u05dd",
    "zero\u200bwidth\u200d\u2060",
    "👩‍🔬🧪 \U0001f1e9\U0001f1ea",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L",
    "bell\x07 escape\x1b[31m delete\x7f next\x85",
    "line\r\nbreak\n\ttab\x0bvertical\x0cfeed",
    "very long " + "x" * 5000,
    "word " * 500,
    # other languages of text
    r"\textbf{x} $\alpha_1^2$ \input{/etc/passwd} % & # _ ~ ^",
    "| a | *b* _c_ `d` [e](javascript:window.hacked=1) ![f](x) ~~g~~ # h",
    "   leading and trailing   ",
)
