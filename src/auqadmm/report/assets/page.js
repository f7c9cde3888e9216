// Puts the page together: charts, the switches of each chapter, pictures, colours, print.

const root = document.documentElement;
const allCharts = [];

function axisChooser(name, axes, choose) {
  const select = el("select", {}, ...axes.map((axis, i) => el("option", { value: i }, axis.words)));
  select.addEventListener("change", () => choose(Number(select.value)));
  return el("label", { class: "chooser" }, el("span", {}, name), select);
}

function choosers(panel, entries) {
  const choose = (index) => (value) => {
    for (const { chart, zoom } of entries) {
      chart[index] = value;
      zoom.home();
    }
  };
  const made = [];
  if (panel.y.length > 1) made.push(axisChooser("Vertical", panel.y, choose("yi")));
  if (panel.x.length > 1) made.push(axisChooser("Horizontal", panel.x, choose("xi")));
  return made;
}

function sameAxes(panels) {
  const text = ({ x, y }) => JSON.stringify([x, y]);
  return panels.every((panel) => text(panel) === text(panels[0]));
}

function toggles(series, shown, redraw, highlight) {
  const group = el("div", { class: "methods", role: "group", "aria-label": "Methods" });
  const all = el("button", { type: "button", class: "all idle" }, "Show all");
  const buttons = series.map((look, i) => {
    const button = el("button", { type: "button", class: "method", "aria-pressed": "true" }, swatch(look), el("span", {}, look.label));
    if (look.control) button.append(el("span", { class: "tag" }, "control"));
    button.addEventListener("click", () => set(i, !shown.has(i)));
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => highlight(i));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => highlight(null));
    return button;
  });
  function update() {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(shown.has(i))));
    all.classList.toggle("idle", shown.size === series.length);
    redraw();
  }
  function set(i, on) {
    if (on) shown.add(i);
    else shown.delete(i);
    update();
    highlight(on ? i : null);
  }
  all.addEventListener("click", () => {
    series.forEach((_, i) => shown.add(i));
    buttons[0].focus(); // the button is about to go
    update();
  });
  group.append(...buttons);
  if (series.length > 1) group.append(all);
  return group;
}

function buildChapter(section, chapter) {
  const hosts = [...section.querySelectorAll(".chart")];
  if (!hosts.length) return;
  const shown = new Set(chapter.series.keys());
  const entries = hosts.map((host, i) => {
    const chart = new Chart(host, chapter.panels[i], chapter.series, shown);
    const bar = el("div", { class: "bar" });
    const readout = new Readout(chart);
    const zoom = new Zoom(chart, readout, bar);
    host.before(bar);
    allCharts.push(chart);
    return { chart, zoom, readout, bar };
  });
  const redraw = () => entries.forEach(({ zoom, chart }) => zoom.set(chart.view));
  const highlight = (series) => {
    for (const { chart } of entries) {
      const on = series !== null && shown.has(series);
      chart.root.classList.toggle("faded", on);
      for (const node of chart.root.querySelectorAll("[data-series]")) {
        node.classList.toggle("lit", on && node.dataset.series === String(series));
      }
    }
  };
  const tools = section.querySelector(".tools");
  if (chapter.series.length) tools.append(toggles(chapter.series, shown, redraw, highlight));
  const common = sameAxes(chapter.panels);
  if (common) {
    const made = choosers(chapter.panels[0], entries);
    if (made.length) tools.append(el("div", { class: "choosers" }, ...made));
  } else {
    entries.forEach(({ bar }, i) => {
      const made = choosers(chapter.panels[i], [entries[i]]);
      if (made.length) bar.prepend(el("div", { class: "choosers" }, ...made));
    });
  }
}

function drawAll() {
  for (const chart of allCharts) chart.draw();
}

function watchWidths() {
  const observer = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      const chart = allCharts.find(({ host }) => host === target);
      const width = Math.max(Math.round(target.clientWidth), 240);
      if (chart && target.clientWidth && width !== chart.width && !matchMedia("print").matches) chart.draw();
    }
  });
  for (const { host } of allCharts) observer.observe(host);
}

function addHelp() {
  const first = document.querySelector(".panels");
  if (!first) return;
  const keys = [
    ["Drag", "zoom into the box; along one axis if the box is nearly a line"],
    ["Ctrl or ⌘ + wheel", "zoom around the pointer"],
    ["Double click", "back to the whole"],
    ["+  −  0", "with the focus on a chart: zoom in, zoom out, back to the whole"],
    ["← → ↑ ↓", "move the view"],
    [",  .", "move the read-out"],
  ];
  const list = el("dl", { class: "keys" }, ...keys.map(([key, what]) => el("div", {}, el("dt", {}, key), el("dd", {}, what))));
  const help = el("details", { class: "help" }, el("summary", {}, "How to use the charts"), list);
  first.closest(".chapter").querySelector(".tools").before(help);
}

function addTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null; // kept nowhere: the next visit follows the system again
  const button = el("button", { type: "button", class: "theme" }, "Dark colours");
  const isDark = () => (chosen === null ? dark.matches : chosen);
  const update = () => {
    root.style.colorScheme = chosen === null ? "" : chosen ? "dark" : "light";
    button.setAttribute("aria-pressed", String(isDark()));
  };
  button.addEventListener("click", () => {
    chosen = !isDark();
    update();
  });
  dark.addEventListener("change", update);
  update();
  document.getElementById("theme").append(button);
}

function addDialog() {
  const image = el("img", { alt: "" });
  const caption = el("p", {});
  const close = el("button", { type: "button" }, "Close");
  const dialog = el("dialog", { "aria-label": "Enlarged picture" }, el("div", { class: "dialog-bar" }, caption, close), image);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  for (const button of document.querySelectorAll(".enlarge")) {
    const picture = button.querySelector("img");
    button.title = "Enlarge";
    button.addEventListener("click", () => {
      image.src = picture.src;
      image.alt = picture.alt;
      image.width = 2 * picture.naturalWidth; // or what the window allows
      const title = button.parentElement.querySelector("figcaption");
      caption.textContent = title ? title.textContent : "";
      dialog.showModal();
    });
  }
}

function openForPrint() {
  let opened = [];
  const open = () => {
    opened = opened.concat([...document.querySelectorAll("details:not([open])")]);
    for (const details of opened) details.open = true;
    for (const chart of allCharts) {
      const alone = chart.host.closest(".panels").children.length === 1;
      chart.draw(alone ? 680 : 350); // about what paper has; the drawing is scaled to fit
    }
  };
  const restore = () => {
    for (const details of opened) details.open = false;
    opened = [];
    drawAll();
  };
  addEventListener("beforeprint", open);
  addEventListener("afterprint", restore);
  matchMedia("print").addEventListener("change", (event) => (event.matches ? open() : restore()));
}

// The entry of the table of contents whose section is being read.
function followContents() {
  const links = new Map([...document.querySelectorAll(".contents a")].map((a) => [a.hash.slice(1), a]));
  const sections = [...document.querySelectorAll("main > section")];
  let current = null;
  const observer = new IntersectionObserver(
    () => {
      const above = sections.filter((section) => section.getBoundingClientRect().top < innerHeight * 0.35);
      const link = above.length ? links.get(above[above.length - 1].id) : null;
      if (link === current) return;
      if (current) current.removeAttribute("aria-current");
      if (link) link.setAttribute("aria-current", "true");
      current = link;
    },
    { rootMargin: "0px 0px -65% 0px" },
  );
  for (const section of sections) observer.observe(section);
}

root.classList.remove("no-js");
const data = JSON.parse(document.getElementById("data").textContent);
for (const section of document.querySelectorAll("[data-chapter]")) buildChapter(section, data[Number(section.dataset.chapter)]);
addHelp();
addTheme();
addDialog();
openForPrint();
drawAll();
watchWidths();
followContents();
