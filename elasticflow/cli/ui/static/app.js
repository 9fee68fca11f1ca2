// All views of the page: all runs, one run, several side by side. What is shown comes from /api alone.
import {chart, harmless, number} from "./charts.js";

const FEW = 20;  // rows of a table, until more are asked for
const AGAIN_MS = 3000;  // all runs at a glance are asked for anew so often
const main = document.getElementById("main"), said = document.getElementById("said"), where = document.getElementById("where");
let leave = () => {};  // ends what the present view has begun

function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  const shown = children.flat().filter((child) => child !== null && child !== undefined && child !== "");
  made.append(...shown.map((child) => child instanceof Node ? child : harmless(child)));
  return made;
}

function say(words, kind = "") { const text = harmless(words); if (said.textContent !== text) { said.textContent = text; said.className = kind; } }

async function ask(path, options = {}) {
  const answer = await fetch(path, {cache: "no-store", ...options});
  const text = await answer.text();
  if (!answer.headers.get("Content-Type").startsWith("application/json")) throw new Error(text.trim() || `${answer.status}`);
  const told = JSON.parse(text);
  if (!answer.ok) throw new Error(told.error || `${answer.status}`);
  return told;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60);
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

function date(at) {
  if (at === null || at === undefined) return "";
  const when = new Date(1000 * at), two = (value) => String(value).padStart(2, "0");
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${two(when.getHours())}:${two(when.getMinutes())}`;
}

const ENDED = ["finished", "stopped", "failed", "diverged", "stalled", "broken"];

function kindOf(state) {
  if (["failed", "killed", "unreadable", "absent", "diverged", "stalled", "broken", "refused"].some((each) => state.startsWith(each))) return "bad";
  if (["finished", "running"].some((each) => state.startsWith(each))) return "good";
  return state === "unknown" ? "warn" : "";
}

const link = (name) => `#/run/${encodeURIComponent(name)}`;

// rows: arrays of cells, each a text, a number or an element. What is beyond FEW rows waits behind a button.
function table(caption, head, rows, open, name) {
  const all = open.has(name);
  const cells = (all ? rows : rows.slice(0, FEW)).map((row) => h("tr", {}, row.map((cell) =>
    h("td", {class: typeof cell === "number" ? "number" : null}, typeof cell === "number" ? number(cell) : cell ?? ""))));
  const more = rows.length > FEW && !all
    ? h("p", {}, h("button", {type: "button", id: `more-${name}`, onclick: (event) => { open.add(name); event.target.dispatchEvent(new Event("redraw", {bubbles: true})); }},
      `All ${rows.length.toLocaleString("en")}`)) : null;
  return h("section", {}, h("div", {class: "scroll", id: `table-${name}`, tabindex: "0", role: "region", "aria-label": caption}, h("table", {},
    h("caption", {}, caption), h("thead", {}, h("tr", {}, head.map((cell) => h("th", {scope: "col"}, cell)))), h("tbody", {}, cells))), more);
}

function facts(pairs) {
  return h("dl", {class: "facts"}, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// A view is drawn anew with each news; what somebody has focused, typed, opened or scrolled stays so.
function draw(content) {
  const focused = document.activeElement;
  const scrolled = [...main.querySelectorAll(".scroll")].map((each) => [each.id, each.scrollLeft]);
  main.replaceChildren(...content);
  for (const [id, left] of scrolled) document.getElementById(id)?.scrollTo({left});
  const again = focused?.id && focused.id !== "main" ? document.getElementById(focused.id) : null;
  again?.focus({preventScroll: true});
}

// Whether somebody points at a chart, presses something or has selected a text, which a new drawing would take away.
const isLookedAt = () => main.querySelector("svg:hover, :active") !== null || !(getSelection()?.isCollapsed ?? true);

// --- all runs ------------------------------------------------------------------------------------

function runsView() {
  const chosen = new Set(), open = new Set();
  let told = null, timer = 0, gone = false;
  const again = () => {
    if (!told || gone) return;
    document.title = `ElasticFlow: ${told.title}`;
    where.textContent = harmless(told.title);
    const rows = told.runs.map((run) => [
      h("input", {type: "checkbox", id: `choose-${run.name}`, "aria-label": `compare ${run.name}`, checked: chosen.has(run.name),
        onchange: (event) => { event.target.checked ? chosen.add(run.name) : chosen.delete(run.name); again(); }}),
      h("a", {href: link(run.name), id: `run-${run.name}`}, run.name), h("span", {class: kindOf(run.state)}, run.state),
      date(run.begun_at), span(run.seconds), run.step === null ? "" : `${number(run.step)} / ${run.steps_total === null ? "?" : number(run.steps_total)}`,
      run.loss === null ? "" : number(run.loss), metric(run), run.worker_hours === null ? "" : run.worker_hours.toFixed(2), run.faults ?? "",
      h("code", {}, (run.digest || "").slice(0, 12))]);
    const few = chosen.size < 2;
    draw([
      h("h1", {}, told.title), told.service ? serviceTables(told.service, open) : null, h("h2", {}, "Runs"),
      rows.length ? table(`${rows.length} runs, the newest first`, ["", "run", "state", "begun", "took", "steps", "loss", "metric", "worker hours", "faults", "digest"], rows, open, "runs")
        : h("p", {class: "quiet"}, "There is no run here yet."),
      rows.length > 1 ? h("p", {}, h("button", {type: "button", id: "compare", disabled: few,
        onclick: () => { location.hash = `#/compare/${[...chosen].map(encodeURIComponent).join(",")}`; }}, few ? "Compare: choose two or more" : `Compare ${chosen.size}`)) : null,
    ].filter(Boolean));
  };
  const look = async () => {
    let wrong = "";
    try { told = await ask("api/runs"); } catch (error) { wrong = error.message; }
    if (gone) return;
    if (!wrong && !isLookedAt()) again();
    say(wrong, "warn");
    timer = setTimeout(look, AGAIN_MS);
  };
  main.addEventListener("redraw", again);
  look();
  return () => { gone = true; clearTimeout(timer); main.removeEventListener("redraw", again); };
}

function metric(run) {
  if (run.best) return `${run.best.metric} ${number(run.best.value)}`;
  const found = Object.entries(run.evaluation || {}).filter(([name, value]) => !["epoch", "step"].includes(name) && typeof value === "number");
  const [name, value] = found.find(([each]) => each !== "cost") || found[0] || [];
  return name ? `${name} ${number(value)}` : "";
}

function serviceTables(service, open) {
  const away = Object.entries(service.away).map(([node, why]) => `${node}: ${why}`).join("; ");
  const rows = service.tasks.map((task) => [h("a", {href: link(task.name), id: `task-${task.name}`}, task.name), h("span", {class: kindOf(task.state)}, task.state), task.standing,
    task.workers, date(task.deadline_at), date(task.promised_at), date(task.ended_at ?? task.eta_at), plan(task), task.why]);
  return h("section", {}, facts([["workers there can be", number(service.capacity)], ["cluster", service.cluster], ["away", away]]),
    table("What each run was granted and promised", ["run", "state", "standing", "workers", "deadline", "promised", "done, or expected", "plan", "why"], rows, open, "tasks"));
}

function plan(task) {
  return task.plan.map((share) => `${share.workers} until ${date(share.until_at).slice(11)}`).join(", ");
}

// --- one run -------------------------------------------------------------------------------------

const sourcesOf = (told) => ({losses: told.losses ?? [], evaluations: told.evaluations ?? [], sizes: told.sizes ?? []});

function metricsOf(evaluations) {
  return [...new Set(evaluations.flatMap((each) => Object.keys(each)))].filter((name) => !["epoch", "step"].includes(name) && evaluations.some((each) => typeof each[name] === "number"));
}

const ofMetric = (evaluations, name) => evaluations.map((each) => [each.step, each[name]]);

function runView(name) {
  const open = new Set();
  let told = null, steers = false, drawn_ms = 0, timer = 0, gone = false, over = false;
  document.title = `${name}: ElasticFlow`;
  where.textContent = `/ ${harmless(name)}`;
  draw([h("h1", {}, name), h("p", {class: "quiet"}, "Asked for.")]);
  const form = steering(name);
  const again = () => { if (told && !gone) draw(runPage(name, told, steers ? form : null, open)); drawn_ms = performance.now(); };
  const due = () => { timer = 0; if (isLookedAt()) soon(500); else again(); };
  const soon = (least_ms = 0) => { timer ||= setTimeout(due, Math.max(least_ms, drawn_ms + 500 - performance.now())); };
  const events = new EventSource(`api/run/${encodeURIComponent(name)}/events`);
  events.onmessage = (event) => {
    const news = JSON.parse(event.data);
    if (news.state !== told?.state) say(news.state);  // an answer to who steers stays until then
    told = news;
    soon();
  };
  events.addEventListener("over", () => { over = true; events.close(); });
  events.addEventListener("trouble", (event) => { over = true; say(JSON.parse(event.data).error, "warn"); events.close(); if (!told) draw([h("h1", {}, name), h("p", {class: "warn"}, JSON.parse(event.data).error)]); });
  events.onerror = () => {
    if (over || gone) return;
    if (events.readyState !== EventSource.CLOSED) say("'elasticflow ui' does not answer; it is asked again", "warn");
    else say("'elasticflow ui' no longer knows this page: open the address that it printed", "bad");
  };
  ask("api/runs").then((all) => { steers = all.steers; if (!gone) soon(); }).catch(() => {});
  main.addEventListener("redraw", again);
  return () => { gone = true; events.close(); clearTimeout(timer); main.removeEventListener("redraw", again); };
}

// form: what steers it; null: this page only shows it.
function runPage(name, told, form, open) {
  const title = h("h1", {}, name, ": ", h("span", {class: kindOf(told.state)}, told.state, told.regrouping ? ", regrouping" : ""));
  if (!told.format) return [title, h("p", {}, told.text || "")];
  const {losses, evaluations, sizes} = sourcesOf(told), workers = told.workers ?? [];
  const ready = workers.filter((each) => each.state === "ready").length, hosts = new Set(workers.map((each) => each.host)).size;
  const cost = told.standstill_s + told.stalled_s;
  if (form && !form.matches(":focus-within")) form.elements.workers.value = told.target_workers;
  const charts = [
    chart("loss, of training", [{name: "loss", points: losses.map((each) => [each.step, each.loss])}]),
    ...metricsOf(evaluations).map((each) => chart(`${each}, of tests`, [{name: each, points: ofMetric(evaluations, each)}])),
    chart("workers over time", [{name: "there", points: overTime(sizes, told.elapsed_s, "ready")}, {name: "wanted", points: overTime(sizes, told.elapsed_s, "wanted")}], {xName: "second", steps: true, fromZero: true}),
    losses.some((each) => each.lr !== null) ? chart("learning rate", [{name: "rate", points: losses.map((each) => [each.step, each.lr])}], {steps: true}) : null,
  ].filter(Boolean);
  const seconds = Object.entries(told.workers_seconds).filter(([, value]) => value > 0), all = seconds.reduce((sum, [, value]) => sum + value, 0);
  return [
    title, h("p", {class: "quiet"}, h("code", {}, told.run)), told.text ? h("p", {class: kindOf(told.state)}, told.text) : null,
    told.steps_total ? h("progress", {value: told.step, max: told.steps_total, "aria-label": `step ${told.step} of ${told.steps_total}`}) : null,
    told.master && !ENDED.includes(told.state) ? form : null,
    facts([
      ["step", `${number(told.step)} of ${told.steps_total === null ? "?" : number(told.steps_total)}`], ["epoch", `${told.epoch} of ${told.epochs}`],
      ["loss", told.loss === null ? "" : number(told.loss)], ["records a second", told.records_per_s ? number(Math.round(told.records_per_s)) : ""],
      ["workers", told.master ? `${ready} of ${told.target_workers}${hosts > 1 ? ` on ${hosts} hosts` : ""}` : ""], ["took", span(told.total_s)],
      ["left, at this speed", span(told.eta_s)], ["deadline", told.deadline_at ? `${date(told.deadline_at)}${told.met_deadline === null ? "" : told.met_deadline ? ", met" : ", missed"}` : ""],
      ["checkpoint", told.checkpoint_step === null ? "" : `step ${number(told.checkpoint_step)}`], ["best", told.best ? `${told.best.metric} ${number(told.best.value)} at step ${told.best.step}` : ""],
      ["faults", told.num_faults ? `${told.num_faults}, which cost ${number(cost)} s` : "none"], ["storage", told.storage_trouble],
    ]),
    told.target_reason ? h("p", {}, `Why ${told.target_workers} workers: ${told.target_reason}. ${told.shortage}`) : null,
    h("h2", {}, "Curves"), h("div", {class: "charts"}, charts),
    told.faults.length ? h("h2", {}, "Faults, and what each cost") : null,
    told.faults.length ? table("The newest first", ["when", "who", "what", "seconds", "steps made again", "what was done"],
      told.faults.map((each) => [span(each.time_s), each.member || each.role, each.text, each.seconds, each.steps, each.done]).reverse(), open, "faults") : null,
    told.sizes.length + told.resizes.length ? h("h2", {}, "Size, and why") : null,
    told.sizes.length + told.resizes.length ? table("The newest first", ["when", "workers", "why"], sizeRows(told), open, "sizes") : null,
    h("h2", {}, "Events"), table("The newest first", ["when", "what"], told.events.map((each) => [span(each.time_s), h("span", {class: {fault: "bad", warning: "warn"}[each.kind] ?? ""}, each.text)]).reverse(), open, "events"),
    told.master ? h("h2", {}, "Processes") : null,
    told.master ? table("Those that are not ready come first", ["name", "state", "step", "host", "place", "slices of a step", "a slice, ms"],
      [told.master, ...told.servers, ...workers].sort((a, b) => (a.state === "ready") - (b.state === "ready")).map((each) => [each.name, each.state, each.step, each.host, each.place || `process ${each.pid}`, each.slices ?? "", each.slice_s ? 1000 * each.slice_s : ""]), open, "members") : null,
    all ? h("h2", {}, "What the workers' seconds went into") : null,
    all ? table(`${number(all)} seconds of workers`, ["", "seconds", "%"], seconds.sort(([, a], [, b]) => b - a).map(([what, value]) => [what, value, (100 * value) / all]), open, "seconds") : null,
  ].filter(Boolean);
}

function overTime(sizes, elapsed_s, what) {
  const points = sizes.map((each) => [each.time_s, each[what]]);
  return points.length ? [...points, [Math.max(elapsed_s, points[points.length - 1][0]), points[points.length - 1][1]]] : [];
}

function sizeRows(told) {
  const asked = told.resizes.map((each) => [each.time_s, `${each.from} to ${each.to} asked for`, each.reason]);
  const there = told.sizes.map((each) => [each.time_s, `${each.ready} of ${each.wanted} there`, each.why]);
  return [...asked, ...there].sort((a, b) => b[0] - a[0]).map(([time_s, what, why]) => [span(time_s), what, why]);
}

// One for as long as a run is looked at: what is pressed, or filled in, is not drawn anew.
function steering(name) {
  const steer = async (what, body) => {
    say("asked for");
    try {
      say((await ask(`api/run/${encodeURIComponent(name)}/${what}`, {method: "POST", headers: {"X-ElasticFlow": "steer"}, body})).text);
    } catch (error) { say(error.message, "bad"); }
  };
  return h("form", {"aria-label": "Steer", onsubmit: (event) => { event.preventDefault(); steer("scale", JSON.stringify({workers: Number(event.target.elements.workers.value)})); }},
    h("label", {for: "workers"}, "Workers"), h("input", {id: "workers", name: "workers", type: "number", min: 1}),
    h("button", {id: "scale"}, "Ask for so many"),
    h("button", {id: "stop", type: "button", onclick: () => { if (confirm(`Stop ${harmless(name)} with a checkpoint?`)) steer("stop", ""); }}, "Stop with a checkpoint"));
}

// --- several runs --------------------------------------------------------------------------------

function compareView(names) {
  const open = new Set();
  let gone = false, content = null;
  document.title = `${names.join(", ")}: ElasticFlow`;
  where.textContent = `/ ${harmless(names.join(" beside "))}`;
  draw([h("h1", {}, names.join(" beside ")), h("p", {class: "quiet"}, "Asked for.")]);
  const again = () => { if (content) draw(comparePage(names, ...content, open)); };
  main.addEventListener("redraw", again);
  (async () => {
    try {
      const query = names.map((each) => `run=${encodeURIComponent(each)}`).join("&");
      let wrong = "";  // of one that cannot be read the others are shown all the same
      const curves = (each) => ask(`api/run/${encodeURIComponent(each)}`).catch((error) => { wrong = error.message; return {}; });
      const found = await Promise.all([ask(`api/compare?${query}`), ...names.map(curves)]);
      content = [found[0], found.slice(1)];
      if (!gone) { again(); say(wrong, "warn"); }
    } catch (error) { say(error.message, "bad"); }
  })();
  return () => { gone = true; main.removeEventListener("redraw", again); };
}

function comparePage(names, comparison, runs, open) {
  const words = (same) => same === null ? "not known of all" : same ? "the same" : "not the same";
  const of = (pick) => names.map((name, n) => ({name, points: pick(sourcesOf(runs[n]))}));
  const metrics = [...new Set(runs.flatMap((each) => metricsOf(each.evaluations ?? [])))];
  const text = (value) => typeof value === "number" ? number(value) : value === null || value === undefined ? "" : String(value);
  const rows = (values, shown = text) => Object.entries(values).map(([name, row]) => [name, ...row.map(shown)]);
  const exact = (value) => value === null || value === undefined ? "" : String(value);
  const glance = [["state", (run) => run.state], ["begun", (run) => date(run.begun_at)], ["took", (run) => span(run.seconds)], ["steps", (run) => text(run.step)],
    ["loss", (run) => text(run.loss)], ["worker hours", (run) => text(run.worker_hours)], ["faults", (run) => text(run.faults)], ["digest", (run) => (run.digest || "").slice(0, 12)], ["data", (run) => run.data]];
  return [
    h("h1", {}, names.flatMap((name, n) => [n ? " beside " : "", h("a", {href: link(name), class: `k${n % 6}`}, name)])),
    h("p", {}, `Models: ${words(comparison.same_digest)}. Programs: ${words(comparison.same_program)}. Data: ${words(comparison.same_data)}.`),
    h("div", {class: "charts"}, chart("loss, of training", of((each) => each.losses.map((point) => [point.step, point.loss]))),
      metrics.map((metric) => chart(`${metric}, of tests`, of((each) => ofMetric(each.evaluations, metric))))),
    h("h2", {}, "At a glance"), table("A column a run", ["", ...names], [...glance.map(([name, pick]) => [name, ...comparison.runs.map(pick)]), ...rows(comparison.metrics)], open, "glance"),
    h("h2", {}, "Settings that differ"), Object.keys(comparison.settings).length ? table("A column a run", ["", ...names], rows(comparison.settings, exact), open, "settings") : h("p", {}, "None."),
    Object.keys(comparison.fingerprint).length ? table("Fingerprints differ, so models may: a column a run", ["", ...names], rows(comparison.fingerprint, exact), open, "fingerprint") : null,
  ].filter(Boolean);
}

// --- which view ----------------------------------------------------------------------------------

// As it stands where it is nothing that this page has written: then there is no such run, which is said.
function decoded(name) { try { return decodeURIComponent(name); } catch { return name; } }

function route() {
  leave();
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/"), name = rest.join("/");
  say("");
  if (kind === "run") leave = runView(decoded(name));
  else if (kind === "compare") leave = compareView(name.split(",").map(decoded));
  else leave = runsView();
  if (!main.contains(document.activeElement)) main.focus({preventScroll: true});
}

addEventListener("hashchange", (event) => { if (location.hash === "#main") { main.focus(); history.replaceState(null, "", event.oldURL); } else route(); });
route();
