// Before the page is drawn, so that it does not flash in the other colours.
(function () {
  "use strict";
  var kept = null;
  try { kept = localStorage.getItem("mcp-audit-theme"); } catch (e) { /* there is no storage */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
