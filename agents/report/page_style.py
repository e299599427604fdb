"""How the page looks: light, one column, readable on a phone."""

PAGE_STYLE = """
:root { color-scheme: light; --ink: #212529; --quiet: #5f6770; --line: #e9ecef; --accent: #d9480f; }
* { box-sizing: border-box; }
body { margin: 0; background: #f8f9fa; color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 12px; letter-spacing: -0.015em; }
h2 { font-size: 18px; margin: 0 0 6px; }
p { margin: 0 0 10px; max-width: 76ch; } small { display: block; font-size: 12.5px; line-height: 1.4; }
.quiet, small, section dd { color: var(--quiet); } .verdict { font-size: 17px; margin-bottom: 18px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px;
  margin-bottom: 20px; }
svg { width: 100%; height: auto; display: block; margin-top: 8px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; white-space: nowrap; width: 100%; margin-top: 8px; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; vertical-align: top; }
th { color: var(--quiet); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
.short { font-size: 15px; } .short td:first-child { white-space: normal; } .short th { font-size: 13px; }
tr.policy td { background: #fff4e6; } tr.policy td:first-child b { color: var(--accent); }
tr.policy td:first-child { color: var(--accent); font-weight: 700; } tr.policy small { font-weight: 400; }
tr.bound td, tr.bound b { color: var(--quiet); font-style: italic; font-weight: 400; }
.wrong { color: #c92a2a; font-weight: 700; }
section dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; margin: 14px 0 0; font-size: 13px; }
dt { font-weight: 600; } dd { margin: 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 10px; margin: 0 0 18px; }
.facts div { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; }
.facts dt { color: var(--quiet); font-size: 12px; } .facts dd { font-size: 14px; line-height: 1.4; }
header { margin-bottom: 22px; }
@media (max-width: 640px) {
  main { padding: 22px 12px 40px; } section { padding: 14px 12px; } h1 { font-size: 24px; }
  .short th, .short td { padding: 6px 4px; } .short th { font-size: 11px; white-space: normal; }
  section dl { grid-template-columns: 1fr; gap: 0; } section dd { margin-bottom: 6px; }
}
"""
