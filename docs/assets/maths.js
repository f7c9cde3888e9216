// Formulas between $$ are typeset when a page has loaded; KaTeX lies beside this file, nothing comes from elsewhere.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const tex = element.textContent.trim().replace(/^\\[[(]/, "").replace(/\\[\])]$/, "");
    katex.render(tex, element, { displayMode: element.tagName === "DIV", throwOnError: false });
  }
});
