"""What both pages share: the style, the policy that nothing is fetched from elsewhere, the bar at the top."""

from __future__ import annotations

# The server's own scripts, styles, fonts and socket; nothing from anywhere else. marimo starts workers from blobs.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws: blob: data:; worker-src 'self' blob:; "
    "base-uri 'self'; form-action 'self'"
)

_STYLE = """
.coral { color: #1F2933; font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
.coral h1 { font-size: 26px; line-height: 1.25; margin: 4px 0; font-weight: 650; }
.coral h2 { font-size: 19px; margin: 0 0 8px; font-weight: 650; }
.coral h3 { font-size: 15px; margin: 12px 0 4px; font-weight: 650; }
.coral .card > h3:first-child { margin-top: 0; }
.coral p { margin: 4px 0; }
.coral code { font-size: 13px; background: #EEF1F4; padding: 2px 5px; border-radius: 4px; overflow-wrap: anywhere; }
.coral .quiet { color: #52606D; font-weight: 400; }
.coral .card { background: #FFF; border: 1px solid #DDE1E6; border-radius: 8px; padding: 16px; margin: 12px 0; }
.coral .missed { border-left: 6px solid #C2410C; }
.coral .cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); margin-top: 12px; }
.coral .tile { background: #FFF; border: 1px solid #DDE1E6; border-radius: 8px; padding: 12px 16px; }
.coral .tile.bad { border-left: 6px solid #C2410C; }
.coral .tile.bad .value { color: #A63A0A; }
.coral .tile .name { color: #52606D; font-size: 13px; }
.coral .tile .value { font-size: 26px; font-weight: 650; line-height: 1.3; font-variant-numeric: tabular-nums; }
.coral .tile .value small { font-size: 14px; font-weight: 400; color: #52606D; }
.coral .tile .note { font-size: 13px; color: #52606D; }
.coral .pair { display: flex; flex-wrap: wrap; gap: 0 16px; align-items: stretch; }
.coral .pair > :first-child { flex: 2 1 680px; min-width: 0; }
.coral .pair > * { flex: 1 1 300px; min-width: 0; }
.coral .pair.even > :first-child, .coral .pair.even > * { flex: 1 1 440px; }
.coral .works { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 12px; }
.coral .works > .whole { grid-column: 1 / -1; }
.coral .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 0; font-size: 13px; }
.coral .legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
.coral .flow { display: flex; flex-wrap: wrap; gap: 18px 40px; margin-top: 10px; }
.coral figure { margin: 0; max-width: 100%; }
.coral figcaption { margin-bottom: 8px; font-size: 14px; }
.coral figcaption .quiet { font-size: 13px; }
.coral svg.replica { max-width: 100%; height: auto; display: block; }
.coral .wide { overflow-x: auto; }
.coral table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
.coral th, .coral td { text-align: right; padding: 5px 10px; border-bottom: 1px solid #E6E9ED; white-space: nowrap; }
.coral td.wrap { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 140px; }
.coral th { font-weight: 600; color: #52606D; font-size: 13px; }
.coral th:first-child, .coral td:first-child, .coral td.text, .coral th.text { text-align: left; }
.coral th { vertical-align: bottom; white-space: normal; }
.coral td.bad { color: #A63A0A; font-weight: 600; }
.coral td.good { color: #00684C; font-weight: 600; }
.coral ul { margin: 4px 0; padding-left: 20px; list-style: disc; }
.coral summary { cursor: pointer; }
.coral nav { display: flex; gap: 20px; align-items: baseline; border-bottom: 1px solid #DDE1E6; padding-bottom: 8px; }
.coral nav b { font-size: 17px; }
.coral nav a { color: #005A8C; text-decoration: none; }
.coral nav a[aria-current] { font-weight: 650; color: #1F2933; border-bottom: 2px solid #0072B2; }
.coral nav a:focus-visible, .coral summary:focus-visible { outline: 2px solid #0072B2; outline-offset: 2px; }
.coral .news { background: #FFF4D6; border: 1px solid #E6C670; border-radius: 8px; padding: 8px 14px; margin: 8px 0; }
/* marimo's own menu (it saves pages that load scripts from elsewhere) and its outline. */
[data-testid="notebook-actions-dropdown"], div.fixed.top-\\[25vh\\] { display: none !important; }
@media (max-width: 1300px) { .coral .works { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 1000px) {
  #App > div { padding-left: 0 !important; padding-right: 0 !important; }
  .coral table { font-size: 13px; }
  .coral th, .coral td { padding: 5px 6px; }
  .coral td:first-child { white-space: normal; }
  .coral td.wrap { min-width: 110px; }
  .coral .pair > :first-child { flex-basis: 500px; }
}
@media print { .coral .card { break-inside: avoid; } }
"""

HEAD = f"<style>{_STYLE}</style>"

PAGES = (("plan", "Plan"), ("library", "Library"))


def coral(body: str) -> str:
    """``body`` in the pages' style."""
    return f'<div class="coral">{body}</div>'


def bar(current: str) -> str:
    """The bar at the top: the pages, and which this is."""
    here = ' aria-current="page"'
    links = "".join(f'<a href="/{name}/"{here if name == current else ""}>{title}</a>' for name, title in PAGES)
    return coral(f"<nav><b>Coral</b>{links}</nav>")
