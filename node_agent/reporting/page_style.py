"""How the page looks: one style sheet, by whose hash the page's policy allows it and no other."""

from base64 import b64encode
from hashlib import sha256

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --dim: #5b6875; --ground: #f6f7f9; --card: #fff; --line: #d8dee5;
  --healthy: #17783c; --degraded: #8a5a00; --bad: #b3261e; --accent: #2a62c9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --dim: #9aa6b4; --ground: #12161c; --card: #1b2129;
  --line: #333d49; --healthy: #5fce87; --degraded: #e5b04b; --bad: #ff8a80; --accent: #82aaff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .5rem; }
p { margin: .3rem 0; } a { color: var(--accent); }
.dim, .caption { color: var(--dim); } .caption { font-size: 12px; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
td p { margin: 0 0 .2rem; }
tr:last-child td { border-bottom: 0; }
th { font-weight: 600; color: var(--dim); font-size: .85rem; white-space: nowrap; }
td.wide { min-width: 14rem; white-space: normal; }
td.key { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere; white-space: normal; }
meter { width: 5rem; height: .8rem; vertical-align: middle; }
.badge { font-weight: 600; white-space: nowrap; }
.badge::before { content: "● "; }
.healthy, .ready { color: var(--healthy); } .degraded, .waiting, .starting { color: var(--degraded); }
.withdrawn, .evicted, .failed, .not-ready { color: var(--bad); } .off { color: var(--dim); }
.alarm { border-left: 4px solid var(--bad); padding: .4rem .8rem; background: var(--card); }
svg { display: block; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .caption { fill: var(--dim); font-size: 11px; }
svg .numa { fill: none; stroke: var(--line); } svg .gpu { fill: var(--card); stroke: var(--dim); stroke-width: 1.5; }
svg .withdrawn .gpu, svg .evicted .gpu { stroke: var(--bad); stroke-width: 3; stroke-dasharray: 5 3; }
svg .degraded .gpu { stroke: var(--degraded); stroke-width: 3; }
svg line { stroke: var(--dim); stroke-width: 1.5; } svg circle { fill: var(--dim); }
svg .rail { stroke: var(--line); }
svg .fabric > line:not(.rail) { stroke: var(--accent); stroke-width: 5; }
svg .fabric circle, svg .strong circle { fill: var(--accent); }
svg .strong > line:not(.rail) { stroke: var(--accent); stroke-width: 3; }
svg .pcie > line:not(.rail) { stroke-dasharray: 4 3; }
svg .island-1 .gpu { fill: color-mix(in srgb, #2a62c9 14%, var(--card)); }
svg .island-2 .gpu { fill: color-mix(in srgb, #17783c 16%, var(--card)); }
svg .island-3 .gpu { fill: color-mix(in srgb, #b3261e 14%, var(--card)); }
svg .island-4 .gpu { fill: color-mix(in srgb, #8a5a00 18%, var(--card)); }
svg .island-5 .gpu { fill: color-mix(in srgb, #7b3fb5 16%, var(--card)); }
svg .island-6 .gpu { fill: color-mix(in srgb, #00838f 16%, var(--card)); }
"""

_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()

# Nothing but this page, this style and an empty icon; no script, no form, nobody's frame.
HEADERS = (
    (
        "content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
)
