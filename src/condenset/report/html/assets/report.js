"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);

  // Sprites: many images in one file. Tiles are numbered row by row.
  const urls = new Map();
  function spriteUrl(name) {
    if (!urls.has(name)) {
      const bytes = Uint8Array.from(atob(data.sprites[name].source), (letter) => letter.charCodeAt(0));
      urls.set(name, URL.createObjectURL(new Blob([bytes], { type: "image/webp" })));
    }
    return urls.get(name);
  }
  function placeTile(element, sprite, tile) {
    const { columns, rows } = data.sprites[sprite];
    const share = (index, num) => (num > 1 ? (100 * index) / (num - 1) : 0);
    element.style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
    element.style.backgroundPosition = `${share(tile % columns, columns)}% ${share(Math.floor(tile / columns), rows)}%`;
  }
  function showTile(element, sprite, tile) {
    placeTile(element, sprite, tile);
    element.style.backgroundImage = `url("${spriteUrl(sprite)}")`;
  }
  function makeElement(tag, className, text) {
    const element = document.createElement(tag);
    element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // Tooltips of charts: the image of a point, or the fields of a mark.
  const tooltip = byId("tooltip");
  function showTooltip(handler, event, item, value) {
    if (value === null || value === undefined || value === "") {
      tooltip.hidden = true;
      return;
    }
    tooltip.replaceChildren();
    const datum = item.datum;
    if (datum && datum.sprite) {
      const picture = makeElement("div", "picture");
      showTile(picture, datum.sprite, datum.tile);
      tooltip.append(picture, makeElement("div", "", `${datum.class}, ${datum.kind}`));
    } else {
      for (const [name, text] of Object.entries(value)) {
        tooltip.append(makeElement("div", "", `${name}: ${text}`));
      }
    }
    tooltip.hidden = false;
    const { width, height } = tooltip.getBoundingClientRect();
    tooltip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tooltip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
  }
  addEventListener("scroll", () => { tooltip.hidden = true; }, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") tooltip.hidden = true; });

  // Charts: Vega-Lite, with the colours of the page.
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  function resolveColors(value) {
    if (typeof value === "string" && /^var-[a-z0-9]+$/.test(value)) return color(value.slice(4));
    if (Array.isArray(value)) return value.map(resolveColors);
    if (value && typeof value === "object") {
      return Object.fromEntries(
        Object.entries(value).map(([key, item]) => [key, key === "values" || key === "domain" ? item : resolveColors(item)]));
    }
    return value;
  }
  function chartConfig() {
    const text = { labelColor: color("quiet"), titleColor: color("quiet"), titleFontWeight: 500 };
    return {
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: null },
      axis: { ...text, domainColor: color("line"), tickColor: color("line"), gridColor: color("line"),
        labelFontSize: 11, titleFontSize: 12 },
      legend: { ...text, labelFontSize: 12, symbolOpacity: 1, symbolBaseFillColor: color("quiet") },
      axisX: { grid: false },
      range: { category: ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#ff9da6",
        "#9d755d", "#8f8b88"] },
    };
  }
  function drawChart(id, values, height) {
    const element = byId(id);
    const spec = resolveColors(data.charts[id]);
    if (values) Object.assign(spec, { data: { values }, height });
    const base = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container",
      autosize: { type: "fit-x", contains: "padding" }, config: chartConfig() };
    return vegaEmbed(element, { ...base, ...spec },
      { actions: false, ast: true, renderer: values && values.length > 2500 ? "canvas" : "svg", tooltip: showTooltip });
  }

  // Classes: bars and confusion matrix of the chosen set.
  const classesChoice = byId("classes-choice");
  function drawClasses() {
    const entry = data.classes[Number(classesChoice.value)];
    const height = Math.max(120, (entry.names.length > 30 ? 14 : 26) * entry.names.length);
    drawChart("chart-classes", entry.names.map((name, index) => (
      { class: name, accuracy: entry.accuracies[index], test_images: entry.test_images[index] })), height);
    byId("confusion").hidden = !entry.confusion;
    if (!entry.confusion) return;
    drawChart("chart-confusion", entry.confusion.flatMap((row, index) => {
      const total = row.reduce((sum, count) => sum + count, 0) || 1;
      return row.map((count, column) => (
        { class: entry.names[index], predicted: entry.names[column], share: (100 * count) / total }));
    }), height);
  }
  function drawCharts() {
    for (const id of Object.keys(data.charts)) {
      if (id !== "chart-classes" && id !== "chart-confusion") drawChart(id);
    }
    if (classesChoice) drawClasses();
  }
  if (classesChoice) classesChoice.addEventListener("change", drawClasses);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  if (Object.keys(data.charts).length) drawCharts();

  // Tables that are sorted by a column.
  function compare(first, second) {
    const [x, y] = [Number(first), Number(second)];
    return Number.isNaN(x) || Number.isNaN(y) ? first.localeCompare(second) : x - y;
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((a, b) => (ascending ? 1 : -1) * compare(value(a), value(b)));
      table.tBodies[0].append(...rows);
    }));
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(byId(button.dataset.copy));
      }
    });
  }

  if (!data.sets) return;

  // Images: rows of tiles, a slider through the snapshots, a filter by class.
  const [setChoice, classChoice, slider, rows] = ["set-choice", "class-choice", "step", "rows"].map(byId);
  let current = data.sets[0];
  let tiles = []; // the buttons, in reading order
  const hasSnapshots = () => current.steps.length > 1;

  function makeStrip(row, kind) {
    const strip = makeElement("div", "strip");
    if (hasSnapshots()) strip.append(makeElement("span", "strip-label", kind === "initial" ? "initial" : "now"));
    row.tiles.forEach((tile, index) => {
      const element = makeElement(kind === "initial" ? "span" : "button", `tile ${kind}${kind === "initial" ? " small" : ""}`);
      placeTile(element, current.steps[0].sprite, tile);
      if (kind === "initial") {
        element.setAttribute("aria-hidden", "true");
      } else {
        element.type = "button";
        element.tabIndex = -1;
        element.setAttribute("aria-label", `${row.name}, image ${index + 1} of ${row.tiles.length}. Enlarge.`);
        element.addEventListener("click", () => openZoom(row, index));
      }
      strip.append(element);
    });
    return strip;
  }
  function drawRows() {
    rows.replaceChildren();
    for (const row of current.rows) {
      const element = makeElement("div", "class-row");
      element.dataset.label = row.label;
      const strips = makeElement("div", "strips");
      strips.append(makeStrip(row, "now"));
      if (hasSnapshots()) strips.append(makeStrip(row, "initial"));
      element.append(makeElement("div", "class-name", row.name), strips);
      rows.append(element);
    }
    filterClasses();
  }
  function filterClasses() {
    const chosen = classChoice.value;
    for (const element of rows.children) element.hidden = chosen !== "" && element.dataset.label !== chosen;
    tiles = [...rows.querySelectorAll(".class-row:not([hidden]) button.tile")];
    if (tiles.length) tiles[0].tabIndex = 0;
  }
  function showStep() {
    const step = current.steps[Number(slider.value)];
    rows.style.setProperty("--now", `url("${spriteUrl(step.sprite)}")`);
    byId("step-label").textContent = step.label;
    slider.setAttribute("aria-valuetext", step.label);
  }
  function showSet() {
    current = data.sets[Number(setChoice.value)];
    slider.max = String(current.steps.length - 1);
    slider.value = slider.max;
    byId("step-control").hidden = !hasSnapshots();
    byId("set-note").textContent = current.note;
    byId("set-note").hidden = !current.note;
    rows.style.setProperty("--initial", `url("${spriteUrl(current.steps[0].sprite)}")`);
    for (const step of current.steps) new Image().src = spriteUrl(step.sprite); // so that the slider does not flicker
    const widest = Math.max(...current.rows.map((row) => row.tiles.length));
    rows.style.setProperty("--scale", String(Math.min(1.7, Math.max(1, 16 / widest))));
    drawRows();
    showStep();
  }
  setChoice.addEventListener("change", () => { stopPlaying(); showSet(); });
  classChoice.addEventListener("change", filterClasses);
  slider.addEventListener("input", () => { stopPlaying(); showStep(); });

  // Arrow keys move between tiles; only one of them is in the tab order.
  rows.addEventListener("keydown", (event) => {
    const index = tiles.indexOf(document.activeElement);
    if (index < 0) return;
    const row = (tile) => tile.closest(".class-row");
    const inRow = tiles.filter((tile) => row(tile) === row(tiles[index]));
    const column = inRow.indexOf(tiles[index]);
    const neighbour = (direction) => {
      let sibling = row(tiles[index])[direction];
      while (sibling && sibling.hidden) sibling = sibling[direction];
      const others = sibling ? sibling.querySelectorAll("button.tile") : [];
      return others[Math.min(column, others.length - 1)];
    };
    const target = { ArrowRight: tiles[index + 1], ArrowLeft: tiles[index - 1], Home: inRow[0], End: inRow.at(-1),
      ArrowDown: neighbour("nextElementSibling"), ArrowUp: neighbour("previousElementSibling") }[event.key];
    if (!target) return;
    event.preventDefault();
    tiles[index].tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  });

  // Play through the snapshots.
  const play = byId("play");
  let timer = 0;
  function stopPlaying() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  }
  play.addEventListener("click", () => {
    if (timer) return stopPlaying();
    if (slider.value === slider.max) slider.value = "0";
    showStep();
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    timer = setInterval(() => {
      slider.value = String(Number(slider.value) + 1);
      showStep();
      if (slider.value === slider.max) stopPlaying();
    }, 450);
  });

  // The enlarged image, with its initial image and the nearest real images.
  const zoom = byId("zoom");
  let position = { row: null, index: 0 };
  function openZoom(row, index) {
    position = { row, index };
    const tile = row.tiles[index];
    const step = current.steps[Number(slider.value)];
    byId("zoom-title").textContent = `${row.name}, image ${index + 1} of ${row.tiles.length}`;
    showTile(byId("zoom-image"), step.sprite, tile);
    byId("zoom-image").setAttribute("aria-label", `${current.synthetic ? "Synthetic" : "Selected real"} image of ${row.name}`);
    byId("zoom-caption").textContent = hasSnapshots() ? `${current.label}: ${step.label}` : current.label;
    byId("zoom-initial-figure").hidden = !hasSnapshots();
    if (hasSnapshots()) {
      showTile(byId("zoom-initial"), current.steps[0].sprite, tile);
      byId("zoom-initial").setAttribute("aria-label", `Initial image of ${row.name}`);
    }
    const nearest = current.neighbours[tile] || [];
    byId("zoom-real").hidden = !nearest.length;
    byId("zoom-neighbours").replaceChildren(...nearest.map((real, number) => {
      const picture = makeElement("div", "picture small");
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", `Real image of ${row.name}, number ${number + 1} by similarity`);
      showTile(picture, "real", real);
      return picture;
    }));
    if (!zoom.open) zoom.showModal();
  }
  function moveZoom(offset) {
    const num = position.row.tiles.length;
    openZoom(position.row, (position.index + offset + num) % num);
  }
  byId("zoom-close").addEventListener("click", () => zoom.close());
  byId("zoom-previous").addEventListener("click", () => moveZoom(-1));
  byId("zoom-next").addEventListener("click", () => moveZoom(1));
  zoom.addEventListener("click", (event) => { if (event.target === zoom) zoom.close(); });
  zoom.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") moveZoom(-1);
    if (event.key === "ArrowRight") moveZoom(1);
  });
  showSet();
})();
