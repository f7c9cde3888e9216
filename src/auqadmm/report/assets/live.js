"use strict";
(() => {
  const EVERY = 1000, PATIENCE = 3;  // milliseconds between questions; questions without an answer before a word
  const at = (id) => document.getElementById(id);
  const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  let missed = 0, over = false;

  function bytes(n) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let k = 0;
    while (n >= 1000 && k < units.length - 1) { n /= 1000; k += 1; }
    return `${k === 0 || n >= 99.95 ? n.toFixed(0) : n.toFixed(1)}\u00a0${units[k]}`;
  }
  function duration(seconds) {
    const s = Math.floor(seconds), two = (n) => String(n).padStart(2, "0");
    return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  }
  function say(id, text) {
    if (at(id).textContent !== text) at(id).textContent = text;  // unchanged text is not read out again
  }
  function cell(kind, text, name) {
    const made = document.createElement(kind);
    if (kind === "th") made.scope = "row"; else made.dataset.name = name;
    if (text instanceof Node) made.append(text); else made.textContent = text;
    if (kind === "td" && !(text instanceof Node)) made.className = "number";
    return made;
  }
  function badge(site) {
    const made = document.createElement("span");
    made.className = `badge ${site.mood}`;
    made.textContent = site.words;
    return made;
  }
  function fill(id, rows) {
    const key = JSON.stringify(rows.map((row) => row.key));
    if (at(id).dataset.key === key) return;  // what somebody has selected stays selected
    at(id).dataset.key = key;
    at(id).replaceChildren(...rows.map((row) => {
      const made = document.createElement("tr");
      made.append(...row.cells());
      return made;
    }));
  }
  const amounts = (x) => [cell("td", grouped(x.messages), "Messages"), cell("td", grouped(x.numbers), "Numbers"),
    cell("td", bytes(x.bytes), "Bytes"), cell("td", x.messages ? `${grouped(x.masked)} of ${grouped(x.messages)}` : "–", "Masked")];

  function show(told) {
    say("headline", told.headline);
    at("outcome").hidden = !told.outcome;
    say("outcome", told.outcome ? told.outcome.words : "");
    const title = told.outcome ? (told.outcome.good ? "Done" : "Ended") : told.headline;
    document.title = `${title} · auqadmm`;
    const study = told.study;
    if (study.data) {
      say("study", `${study.model} on ${study.data} by ${study.method}${study.masked ? ", sums are masked" : ""}`);
    }
    say("iteration", told.row.iteration === undefined ? "–" : grouped(told.row.iteration));
    say("rounds", told.row.rounds === undefined ? "–" : grouped(told.row.rounds));
    say("gap", told.gap.value === null ? "–" : told.gap.value.toExponential(1));
    say("gap-note", told.gap.words);
    say("left", bytes(told.total.bytes));
    say("left-note", `in ${grouped(told.total.messages)} messages of ${grouped(told.sites.length)} sites`);
    say("elapsed", duration(told.elapsed));
    fill("sites", told.sites.map((site) => ({
      key: [site.name, site.words, site.mood, site.messages, site.numbers, site.bytes, site.masked],
      cells: () => [cell("th", site.name), cell("td", badge(site), "State"), ...amounts(site)],
    })));
    fill("asked", told.asked.map((x) => ({
      key: Object.values(x),
      cells: () => [cell("th", x.what), ...amounts(x)],
    })));
    at("asked-part").hidden = !told.asked.length;
    at("refused-part").hidden = !told.refused.length;
    at("refused").replaceChildren(...told.refused.map((text) => {
      const made = document.createElement("li");
      made.textContent = text;
      return made;
    }));
    document.body.dataset.outcome = told.outcome ? (told.outcome.good ? "good" : "bad") : "";
    over = Boolean(told.outcome);
  }
  function silent() {
    missed += 1;
    if (missed < PATIENCE && !over) return;
    at("connection").hidden = false;
    say("connection", over ? "The fit is over, and its server is gone: this is the last it said."
      : "The coordinator does not answer: it was ended, or this machine is busy. Asking again.");
  }
  async function ask() {
    try {
      const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(String(answer.status));
      show(await answer.json());
      missed = 0;
      at("connection").hidden = true;
    } catch {
      silent();
    }
    if (!(over && missed)) setTimeout(ask, EVERY);
  }
  ask();
})();
