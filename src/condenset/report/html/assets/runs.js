"use strict";
(() => {
  const ACTIVE_SECONDS = 2, IDLE_SECONDS = 10;  // between two requests
  const byId = (id) => document.getElementById(id);
  const secret = document.querySelector("meta[name=secret]").content;
  const cards = new Map();  // by the name of the run
  let runs = [];

  // Names come from files: they are only ever set as text.
  function makeElement(tag, className, ...children) {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  }
  function formatSeconds(seconds) {
    if (seconds < 120) return `${Math.max(1, Math.round(seconds))} s`;
    if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
    return `${Math.round(seconds / 86400)} days`;
  }
  const percent = (share) => `${(100 * share).toFixed(1)}%`;

  function describeProgress(run) {
    if (run.state !== "running") return null;
    const job = makeElement("p", "quiet", [run.position, run.job, run.note].filter(Boolean).join(" · "));
    if (run.share === null) return job;
    const bar = makeElement("progress", "");
    bar.max = 1;
    bar.value = run.share;
    bar.setAttribute("aria-label", `Progress of ${run.name}`);
    const rest = run.remaining_seconds === null ? "" : `, about ${formatSeconds(run.remaining_seconds)} left`;
    return makeElement("div", "", job, makeElement("p", "", bar, ` ${Math.floor(100 * run.share)}%${rest}`));
  }
  function describeAccuracies(run) {
    if (!run.accuracies.length) return null;
    const items = run.accuracies.map(([name, accuracy]) =>
      makeElement("li", "", makeElement("span", "label", `${name} `), makeElement("strong", "", percent(accuracy))));
    const hidden = run.num_accuracies - run.accuracies.length;
    if (hidden) items.unshift(makeElement("li", "label", `${hidden} more, and`));
    return makeElement("ul", "accuracies", ...items);
  }
  function describeTime(run) {
    const words = [];
    if (run.seconds !== null) words.push(`${run.state === "running" ? "for" : "took"} ${formatSeconds(run.seconds)}`);
    if (run.state !== "running" && run.updated_seconds !== null) words.push(`${formatSeconds(run.updated_seconds)} ago`);
    return words.join(", ");
  }
  function describeResume(run) {
    if (run.state === "running" || run.state === "finished") return null;
    return makeElement("p", "quiet", "Continue it in a terminal: ", makeElement("code", "", `condenset resume ${quote(run.directory)}`));
  }
  const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
  function fillBody(body, run) {
    const state = makeElement("span", `state ${run.state.replace(" ", "-")}`, run.state);
    const facts = [run.kind, run.dataset, run.methods.join(", "), describeTime(run)].filter(Boolean).join(" · ");
    body.replaceChildren(
      makeElement("h2", "", run.name, state),
      makeElement("p", "quiet", facts),
      ...[
        run.error && makeElement("p", "notice", run.error),
        describeResume(run),
        describeProgress(run),
        describeAccuracies(run),
      ].filter(Boolean),
    );
  }
  function fillActions(actions, run) {
    const address = `/runs/${encodeURIComponent(run.name)}/report.html`;
    const items = [];
    if (run.has_report) {
      const link = makeElement("a", "", "Open report");
      link.href = address;
      link.setAttribute("aria-label", `Open the report of ${run.name}`);
      items.push(link);
    } else if (run.state !== "running") {
      const button = makeElement("button", "", "Write report");
      button.type = "button";
      button.setAttribute("aria-label", `Write the report of ${run.name}`);
      button.addEventListener("click", () => writeReport(button, address));
      items.push(button);
    }
    actions.replaceChildren(...items);
  }
  async function writeReport(button, address) {
    button.disabled = true;
    button.textContent = "Writing …";
    showProblem("");
    try {
      const response = await fetch(address, { method: "POST", headers: { "X-Condenset-Secret": secret } });
      if (!response.ok) {
        const answer = response.status === 400 ? await response.json() : { error: response.statusText };
        throw new Error(answer.error);
      }
    } catch (error) {
      showProblem(`The report could not be written: ${error.message}`);
    }
    button.disabled = false;
    button.textContent = "Write report";
    await update();
  }
  function showProblem(text) {
    byId("problem").textContent = text;
    byId("problem").hidden = !text;
  }

  function showRun(run) {
    let card = cards.get(run.name);
    if (!card) {
      const body = makeElement("div", ""), actions = makeElement("div", "actions");
      card = { element: makeElement("article", "", body, actions), body, actions, shown: "", offered: "" };
      cards.set(run.name, card);
    }
    const shown = JSON.stringify(run), offered = `${run.has_report} ${run.state}`;
    if (card.shown !== shown) fillBody(card.body, run);
    if (card.offered !== offered) fillActions(card.actions, run);
    Object.assign(card, { shown, offered });
    return card.element;
  }
  function show() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => [run.name, run.dataset, run.state, ...run.methods].join(" ").toLowerCase();
    const elements = runs.filter((run) => words.every((word) => text(run).includes(word))).map(showRun);
    const list = byId("runs");
    if (!runs.length) {
      elements.push(makeElement("p", "empty", "No runs yet. Start one: ", makeElement("code", "", "condenset run digits")));
    }
    const changed = elements.length !== list.children.length || elements.some((item, index) => item !== list.children[index]);
    if (changed) list.replaceChildren(...elements);
    const active = runs.filter((run) => run.state === "running").length;
    const summary = `${runs.length} run${runs.length === 1 ? "" : "s"}, ${active} running`;
    if (byId("summary").textContent !== summary) byId("summary").textContent = summary;
    byId("filter-label").hidden = runs.length < 4;
    return active;
  }
  async function update() {
    const response = await fetch("/api/runs");
    if (!response.ok) throw new Error(response.statusText);
    runs = (await response.json()).runs;
    return show();
  }
  async function poll() {
    let seconds = IDLE_SECONDS;
    try {
      if (!document.hidden) seconds = (await update()) ? ACTIVE_SECONDS : IDLE_SECONDS;
      if (byId("problem").textContent.startsWith("The server")) showProblem("");
    } catch {
      showProblem("The server does not answer. Start it again: condenset serve");
    }
    setTimeout(poll, 1000 * seconds);
  }
  byId("filter").addEventListener("input", show);
  document.addEventListener("visibilitychange", () => document.hidden || update().catch(() => {}));
  poll();
})();
