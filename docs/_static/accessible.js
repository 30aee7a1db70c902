// What the theme leaves out for keyboards and screen readers.
addEventListener("load", () => {
  const each = (selector, change) => document.querySelectorAll(selector).forEach(change);
  each("pre, .table-wrapper", (box) => { box.tabIndex = 0; });  // they may scroll
  each(".caption[role=heading]", (caption) => { caption.ariaLevel = "2"; });
  each(".sidebar-drawer", (aside) => { aside.ariaLabel = "The site's pages"; });
  each(".toc-drawer", (aside) => { aside.ariaLabel = "Contents of this page"; });
  if (!document.querySelector("h1")) each("#search-results h2", (title) => { title.ariaLevel = "1"; });
});
