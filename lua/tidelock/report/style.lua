--- report/style.lua - the look and the behaviour of a report's page: style sheet and script.
--
-- Light or dark as the reader's system is, or as the button says. Below 40 em columns shrink and
-- wide tables and charts scroll on their own. Headings of columns are buttons, so a keyboard sorts
-- too; aria-sort says how. Without the script the page is complete, in its first order.

local style = {}

style.sheet = [[
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --soft: #57606a;
  --rule: #d0d7de; --band: #f6f8fa; --mark: #0757ba; --good: #11632e; --bad: #a40e26;
  --s1: #3b7dd8; --s2: #d9822b; --s3: #2e9c6a; --s4: #b5459c; --s5: #7a63d2; --s6: #b8900c;
  --s7: #1f97a8; --s8: #c9484d; }
@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) { --back: #0f1318;
  --text: #e6e9ed; --soft: #a1abb6; --rule: #353d47; --band: #181e25; --mark: #7cb7ff;
  --good: #6fd08c; --bad: #ff8b8b; --s1: #5b9cf0; --s2: #eb9a4b; --s3: #48b985; --s4: #d46fbc;
  --s5: #9c88ee; --s6: #d4ae33; --s7: #3fb6c6; --s8: #ea6f73; } }
:root[data-theme="dark"] { color-scheme: dark; --back: #0f1318; --text: #e6e9ed; --soft: #a1abb6;
  --rule: #353d47; --band: #181e25; --mark: #7cb7ff; --good: #6fd08c; --bad: #ff8b8b;
  --s1: #5b9cf0; --s2: #eb9a4b; --s3: #48b985; --s4: #d46fbc; --s5: #9c88ee; --s6: #d4ae33;
  --s7: #3fb6c6; --s8: #ea6f73; }
:root[data-theme="light"] { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--back);
  color: var(--text); font: 1rem/1.5 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: baseline; }
h1 { font-size: 1.5rem; margin: 0; flex: 1; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p, .notes { color: var(--soft); margin: .25rem 0; }
button { font: inherit; color: inherit; background: var(--band); border: 1px solid var(--rule);
  border-radius: 6px; padding: .2rem .7rem; cursor: pointer; }
:focus-visible { outline: 3px solid var(--mark); outline-offset: 2px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; color: var(--soft); padding: .25rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; }
th { background: var(--band); }
th button { border: 0; padding: 0; background: none; font-weight: 600; }
th[aria-sort="ascending"] button::after { content: " \25b2"; }
th[aria-sort="descending"] button::after { content: " \25bc"; }
th.word, .word { text-align: left; }
td.reason { white-space: normal; min-width: 18rem; text-align: left; color: var(--bad); }
.good { color: var(--good); } .bad { color: var(--bad); }
code, .bits { font-family: ui-monospace, monospace; }
.chart { display: block; width: 100%; min-width: 34rem; max-width: 60rem; height: auto; }
.chart text { fill: var(--text); font-size: 13px; }
.chart .inside { fill: #0b0e12; font-weight: 600; }
.chart .grid { stroke: var(--rule); stroke-width: 1; }
.chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .idle { fill: var(--band); }
.chart .line { fill: none; stroke-width: 2; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .25rem 0;
  padding: 0; font-size: .9rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px;
  margin-right: .4rem; }
@media (max-width: 40em) { body { padding: .6rem; } th, td { padding: .3rem .4rem; } }
@media print { button { display: none; } th button { display: inline; } }
]]

style.script = [[
"use strict";
(function () {
  function value(row, column) {
    var cell = row.cells[column], text = cell ? cell.getAttribute("data-value") : "";
    if (text === null) return { kind: 1, word: cell.textContent };
    return text === "" ? { kind: 2 } : { kind: 0, number: Number(text) };
  }
  function sort(table, column, down) {
    var body = table.tBodies[0], rows = Array.prototype.slice.call(body.rows);
    rows.forEach(function (row, i) { row.place = i; });
    rows.sort(function (a, b) {
      var x = value(a, column), y = value(b, column), order;
      if (x.kind !== y.kind) return x.kind - y.kind;
      order = x.kind === 0 ? x.number - y.number : x.kind === 1 ? x.word.localeCompare(y.word) : 0;
      return (down ? -order : order) || a.place - b.place;
    });
    rows.forEach(function (row) { body.appendChild(row); });
  }
  document.querySelectorAll("table.sortable th button").forEach(function (button) {
    button.addEventListener("click", function () {
      var head = button.parentNode, table = head.closest("table");
      var down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach(function (other) {
        other.removeAttribute("aria-sort");
      });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(table, head.cellIndex, down);
    });
  });
  var root = document.documentElement, theme = document.getElementById("theme");
  function keep(name) {
    try { localStorage.setItem("tidelock-theme", name); } catch (e) { return false; }
    return true;
  }
  function kept() {
    try { return localStorage.getItem("tidelock-theme"); } catch (e) { return null; }
  }
  function show(name) { root.setAttribute("data-theme", name); }
  if (kept() === "dark" || kept() === "light") show(kept());
  theme.hidden = false;
  theme.addEventListener("click", function () {
    var now = root.getAttribute("data-theme") ||
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    show(now === "dark" ? "light" : "dark");
    keep(root.getAttribute("data-theme"));
  });
})();
]]

return style
