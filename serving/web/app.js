// The first page: choose a corpus, type, see hits with scores. The address keeps the corpus and the query.

const PAGE = 10;
const PAUSE_MS = 150;

const part = Object.fromEntries(
  ["encoder", "search", "corpus", "query", "about", "status", "hits", "more", "hit"].map((id) => [id, document.getElementById(id)]),
);

let asked = null; // the running request: a newer one aborts it, so that answers never arrive out of order
let timer = 0;
let corpora = new Map(); // by name

async function call(path, body, signal) {
  const request = body && {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  const response = await fetch(path, { ...request, signal });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error ?? response.statusText), { status: response.status });
  return answer;
}

function say(text, wrong = false) {
  part.status.textContent = text;
  part.status.classList.toggle("wrong", wrong);
}

function show(hit) {
  const item = part.hit.content.cloneNode(true);
  const { title = hit.id, ...rest } = hit.metadata ?? {};
  item.querySelector("meter").value = Math.max(0, hit.score);
  item.querySelector("output").textContent = hit.score.toFixed(3);
  item.querySelector("h2").textContent = title;
  item.querySelector("p").textContent = hit.text;
  item.querySelector("dl").append(...Object.entries(rest).map(([field, value]) => described(field, value)));
  part.hits.append(item);
}

function described(field, value) {
  const pair = document.createElement("div");
  const [term, detail] = [document.createElement("dt"), document.createElement("dd")];
  term.textContent = field;
  detail.textContent = typeof value === "string" ? value : JSON.stringify(value);
  pair.append(term, detail);
  return pair;
}

async function search(offset = 0) {
  const query = part.query.value.trim();
  const corpus = part.corpus.value;
  history.replaceState(null, "", `?${new URLSearchParams({ corpus, q: query })}`);
  asked?.abort();
  if (offset === 0) part.hits.replaceChildren();
  part.more.hidden = true;
  if (!corpus || !query) return say("");
  asked = new AbortController();
  const began = performance.now();
  try {
    const path = `corpora/${encodeURIComponent(corpus)}/search`;
    const answer = await call(path, { query, k: PAGE, offset }, asked.signal);
    answer.hits.forEach(show);
    part.more.hidden = answer.hits.length < PAGE;
    const took = `${Math.round(performance.now() - began)} ms, of which ${Math.round(answer.took_ms)} on the server`;
    say(part.hits.children.length ? `Nearest in meaning first. ${took}.` : "This corpus holds no documents yet.");
  } catch (error) {
    if (error.name !== "AbortError") say(`The search failed: ${error.message}`, true);
  }
}

function listCorpora(listed, wanted) {
  corpora = new Map(listed.map((corpus) => [corpus.name, corpus]));
  part.corpus.replaceChildren(
    ...listed.map(({ name, documents }) => new Option(`${name} (${documents.toLocaleString()})`, name)),
  );
  part.corpus.disabled = listed.length === 0;
  if (corpora.has(wanted)) part.corpus.value = wanted;
}

function describeCorpus() {
  const { description, state } = corpora.get(part.corpus.value) ?? {};
  const stale = "Embedded by another encoder than the one served: it can't be searched until it is uploaded again.";
  part.about.textContent = state === "stale" ? stale : (description ?? "");
}

async function start() {
  const address = new URLSearchParams(location.search);
  part.query.value = address.get("q") ?? "";
  try {
    const [info, { corpora: listed }] = await Promise.all([call("info"), call("corpora")]);
    part.encoder.textContent = `${info.model_id}, ${info.dim} dimensions, ${info.engine} ${info.precision}`;
    listCorpora(listed, address.get("corpus"));
    if (listed.length === 0) return say("There is no corpus yet. Create one with PUT /corpora/{name}, see API below.");
    describeCorpus();
    return search();
  } catch (error) {
    if (error.status !== 503) return say(`The server does not answer: ${error.message}`, true);
    say("The server is loading …");
    return setTimeout(start, 1000);
  }
}

part.search.addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
part.query.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(search, PAUSE_MS);
});
part.corpus.addEventListener("change", () => {
  describeCorpus();
  search();
});
part.more.addEventListener("click", () => search(part.hits.children.length));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== part.query) {
    event.preventDefault();
    part.query.focus();
  }
});

start();
