"""The style sheet of a report: light and dark, wide and narrow, and on paper."""

from sa1bpack.report.markup import Markup

_LIGHT = """
  --paper: #f7f7f5; --card: #ffffff; --ink: #1c2026; --faint: #5a6470; --line: #dcdfe3;
  --bar: #3a76a8; --good: #22744a; --bad: #b02a20; --warn: #8a6100;
"""
_DARK = """
  --paper: #14171b; --card: #1c2026; --ink: #e8eaed; --faint: #a3adb8; --line: #343b44;
  --bar: #6aa9dc; --good: #6fca97; --bad: #f28b80; --warn: #e0b44c;
"""

STYLE = Markup(
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
    """
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1, h2, h3, p, figure, dl, dd { margin: 0; }
h1 { font-size: 28px; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 20px; line-height: 1.3; margin: 40px 0 12px; }
h3 { font-size: 16px; line-height: 1.35; }
h3 + .facts { margin-top: 8px; }
p.lead, figcaption p, .faint { color: var(--faint); font-size: 14px; overflow-wrap: anywhere; }
p.lead { margin-top: 4px; }
p + .scroll, .card > p + p { margin-top: 8px; }
.grid + .card, p + .grid { margin-top: 16px; }
code { font: 13px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 16px; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 350px),
  1fr)); align-items: start; }
.totals { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
  margin-top: 24px; }
.totals > div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; }
.totals dt { color: var(--faint); font-size: 13px; }
.totals dd { font-size: 20px; line-height: 1.3; font-weight: 600;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.totals dd small { display: block; font-size: 13px; font-weight: 400; color: var(--faint); }
.facts > div { display: grid; grid-template-columns: minmax(112px, 2fr) 3fr; gap: 12px;
  padding: 4px 0; font-size: 14px; }
.facts > div + div { border-top: 1px solid var(--line); }
.facts dt { color: var(--faint); }
.facts dd { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.state { border-left: 5px solid var(--faint); }
.state.good { border-left-color: var(--good); } .state.good strong { color: var(--good); }
.state.bad { border-left-color: var(--bad); } .state.bad strong { color: var(--bad); }
.state.warn { border-left-color: var(--warn); } .state.warn strong { color: var(--warn); }
.state + .state { margin-top: 12px; }
.state ul { margin: 8px 0 0; padding-left: 20px; font-size: 14px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--faint); white-space: nowrap; }
th, td { padding: 5px 16px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
td { white-space: nowrap; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 180px; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
details { margin-top: 8px; font-size: 14px; }
summary { cursor: pointer; color: var(--faint); }
svg { display: block; width: 100%; height: auto; margin-top: 12px; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  fill: var(--faint); font-variant-numeric: tabular-nums; }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .bar { fill: var(--bar); } svg .axis { stroke: var(--faint); }
svg .grid { stroke: var(--line); }
.pictures { margin-top: 16px; display: grid; gap: 20px 16px; align-items: end;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 270px), 1fr)); }
.pictures img { display: block; max-width: 100%; max-height: 300px; width: auto; height: auto;
  border-radius: 4px; image-rendering: auto; }
.pictures figcaption { margin-top: 6px; font-size: 14px; overflow-wrap: anywhere; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--bar);
  outline-offset: 2px; }
@media (max-width: 600px) { body { padding: 20px 16px 48px; } h1 { font-size: 24px; } }
"""
    f"@media print {{ :root {{ color-scheme: light; {_LIGHT} --paper: #ffffff; }}\n"
    """
  body { font-size: 11pt; max-width: none; padding: 0; }
  .card, .totals > div, .pictures figure { break-inside: avoid; }
  h2 { break-after: avoid; }
  details:not([open]) { display: none; }
}
"""
)
