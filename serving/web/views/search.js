
import { call } from "../api.js";
import { chance } from "../chance.js";
import { chooser, wanted } from "../chooser.js";
import { button, choice, div, status, touched } from "../controls.js";
import { Counter } from "../counts.js";
import { el, fill } from "../dom.js";
import { NONE, chips, examplesOf, links } from "../examples.js";
import { filterOf, filters, isEmpty } from "../filters.js";
import { counted, json, readable } from "../format.js";
import { byText, hit, isWeak } from "../hits.js";
import { listen } from "../keyboard.js";
import { nothing, suggestions } from "../nothing.js";
import { Options } from "../options.js";
import { tryIt } from "../snippets.js";
import { failure, left } from "../states.js";

const PAGE = 10;
const MOST = 1000; // maximum hits of a request
const SAMPLE = 5; // documents shown before the first search
const [PAUSE_MS, SLOW_PAUSE_MS] = [150, 600]; // pause after a key before a search, without and with reranking
const SLOW_MS = 200; // a longer search shows that it is running
const MODES = [["dense", "Meaning"], ["lexical", "Words"], ["hybrid", "Both"]];

export async function show(place, state) {
	const { listed, corpus } = await wanted(place, state);
	if (corpus) await new Search(place, state, listed, corpus).start();
}

class Search {
	constructor(place, state, listed, corpus) {
		Object.assign(this, { place, state, listed, corpus, path: `corpora/${corpus.name}`, found: 0 });
		this.opened = new Set(state.remembered.opened);
		this.ownVectors = corpus.vectors === "own"; // the server can't embed a query for them
		this.offered = MODES.filter(([mode]) => mode === "lexical" || !this.ownVectors);
		[this.chosenMode] = this.offered.find(([mode]) => mode === state.address.get("mode")) ?? this.offered[0];
		this.options = new Options(corpus.name, state.address, (changes) => this.change(changes));
		if (this.ownVectors) this.options.refused.rerank = "Not with your own vectors.";
		this.filter = filterOf(state.address.get("filter"));
		this.asked = new AbortController(); // aborted by the next search, so that answers never arrive out of order
		this.settled = state.address.has("q"); // the back button leads to complete queries, not to each letter
	}

	get like() {
		return examplesOf(this.state.address);
	}

	// Examples are compared by meaning.
	get mode() {
		return this.like ? "dense" : this.chosenMode;
	}

	start() {
		const { state } = this;
		this.query = el("input", {
			type: "search",
			id: "query",
			autocomplete: "off",
			spellcheck: "false",
			value: state.address.get("q") ?? "",
			placeholder: "Ask in your own words",
			oninput: () => this.typed(),
			onblur: () => this.settle(),
		});
		this.status = status();
		this.counter = new Counter(this.corpus, state.signal);
		this.chosen = div("chosen");
		this.aside = el("aside", { "aria-label": "Filters" });
		this.warnings = el("ul.warn");
		this.hits = el("ol.hits");
		this.below = div("below");
		this.tried = tryIt();
		fill(
			this.place,
			el("form.row", { role: "search", onsubmit: (event) => this.submitted(event) }, this.controls()),
			this.options.element,
			this.corpus.description && el("p.muted.clip", this.corpus.description),
			this.ownVectors && el("p.muted", "The vectors of this corpus are your own. The page searches it by words and by examples."),
			div("columns", this.aside, div("found", this.chosen, div("said", this.counter.element, this.status), this.warnings, this.hits, this.below)),
			this.tried.element,
		);
		listen(this.query, this.hits, state.signal);
		state.signal.addEventListener("abort", () => {
			clearTimeout(this.timer);
			this.asked.abort();
		});
		if (!touched) this.query.focus({ preventScroll: true });
		this.offerFilters();
		return this.search(null, state.remembered.k);
	}

	controls() {
		const to = ({ name }) => this.state.go({ corpus: name, filter: null, sort: null, group: null, size: null, ...NONE });
		this.modes = choice("Search by", this.offered, this.chosenMode, (mode) => this.setMode(mode));
		return [chooser(this.listed, this.corpus, to), el("label.field.wide", el("span", "Query"), this.query), this.modes];
	}

	setMode(mode) {
		this.chosenMode = mode;
		this.change({ mode: mode === "dense" ? null : mode });
	}

	typed() {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => this.ask(), this.options.on("rerank") ? SLOW_PAUSE_MS : PAUSE_MS);
	}

	submitted(event) {
		event.preventDefault();
		clearTimeout(this.timer);
		this.askFor(this.query.value);
	}

	ask() {
		this.state.keep({ corpus: this.corpus.name, q: this.asks(), ...NONE }, { push: this.settled });
		this.settled = false;
		this.search();
	}

	// A space at the end marks the last word as complete.
	asks() {
		return this.query.value.trim() && this.query.value.trimStart().replace(/\s+$/, " ");
	}

	settle() {
		this.settled = this.query.value.trim() !== "";
	}

	async offerFilters() {
		try {
			const { fields } = await call(`${this.path}/fields`, { signal: this.state.signal });
			this.filters = filters(fields, this.filter, (filter) => this.filtered(filter));
			fill(this.aside, this.filters.panel);
			this.aside.hidden = this.filters.panel === null;
			this.options.offer(fields);
			this.showChosen();
			this.count();
		} catch (error) {
			if (!left(error)) fill(this.aside, failure(error, () => this.offerFilters()));
		}
	}

	filtered(filter) {
		this.filter = filter;
		this.change({ filter: isEmpty(filter) ? null : json(filter) });
	}

	// Put the query into the address, and search.
	change(changes) {
		this.state.keep({ corpus: this.corpus.name, ...changes }, { push: true });
		this.search();
	}

	// Show the chips of the filters and of the examples.
	showChosen() {
		const { like, modes } = this;
		const only = el("span.muted", "Examples are compared by meaning.");
		fill(this.chosen, like && div("chips", chips(this.corpus.name, like, (changes) => this.state.go(changes), this.state.signal), only), this.filters?.chips);
		modes.disabled = Boolean(like);
		this.options.show({ mode: this.mode, like: Boolean(like) });
	}

	count() {
		const words = this.mode === "lexical" && this.asks() ? { query: this.asks(), mode: "lexical", ...this.options.words } : null;
		return this.counter.count(words, this.filter, this.filters);
	}

	// Search for `k` hits, or for the page after a { cursor } or an { offset }. The server highlights only a limited number of characters.
	async search(after = null, k = PAGE, highlight = true) {
		this.asked.abort();
		this.asked = new AbortController();
		const { signal } = this.asked;
		this.showChosen();
		this.below.inert = !after; // the button for more hits belongs to the previous search
		const slow = setTimeout(() => {
			this.place.classList.add("busy");
			this.status.textContent = "Searching …";
		}, SLOW_MS);
		const began = performance.now();
		try {
			const [like, query] = [this.like, this.asks()];
			if (!like && !query) return await this.idle(signal, after, k);
			const body = {
				...(like ? { like } : { query, highlight }),
				k: Math.min(k, this.options.most - (after?.offset ?? 0)),
				...(this.mode !== "dense" && { mode: this.mode }),
				...(!isEmpty(this.filter) && { filter: this.filter }),
				...this.options.body,
				...after,
			};
			const answer = await call(`${this.path}/search`, { body, signal });
			const waited = performance.now() - began;
			// Count after the search, so that the key's limit never refuses the search because of the counts.
			const cosines = this.mode !== "lexical" && !like && !body.rerank;
			this.weak = cosines ? await (this.measured ??= chance(this.corpus, this.state.signal)) : null;
			signal.throwIfAborted();
			this.tried.show({ method: "POST", path: `${this.path}/search`, body });
			this.answered(answer, after, waited, body);
		} catch (error) {
			if (left(error)) return;
			if (this.options.refuse(error)) return this.search(after, k, highlight);
			if (error.status === 413 && highlight) return this.search(after, k, false);
			this.failed(error, after);
		} finally {
			clearTimeout(slow);
			if (this.asked.signal === signal) {
				this.place.classList.remove("busy");
				this.below.inert = false;
			}
		}
	}

	answered({ hits, cursor, took_ms: took, index, warnings }, after, waited, body) {
		this.best = Math.max(...hits.map(({ score }) => score), after ? this.best : -Infinity);
		this.add(hits, after, body, warnings);
		const how = this.mode === "lexical" ? "" : ` · ${index === "exact" ? "exact search" : `index ${index}`}`;
		const weak = !after && hits.every((one) => isWeak(one, this.mode, this.weak)) && "All hits are weak: the corpus may contain nothing about this · ";
		const times = `${Math.round(took)} ms on the server, ${Math.round(waited)} ms in all`;
		const next = this.next(hits, cursor, body);
		this.status.textContent = this.found ? `${weak || ""}${next ? "The first " : ""}${counted(this.found, "hit")} · ${times}${how}` : "";
		fill(this.below, next && button("More hits", () => this.search(next)), this.found === 0 && this.nothing());
		this.count();
	}

	next(hits, cursor, { k, group_by: grouped }) {
		if (!this.options.arranged) return cursor && { cursor };
		const shown = grouped ? new Set(hits.map(({ group }) => group)).size : hits.length;
		return shown === k && this.k < this.options.most ? { offset: this.k } : null;
	}

	// Show `found` below the previous hits, or alone. `k` hits were requested.
	add(found, after, { k, group_size: several, rerank }, warnings = []) {
		this.k = Math.min(MOST, after ? this.k + k : k);
		this.state.remember({ k: this.k });
		fill(this.warnings, warnings.map((one) => el("li.clip", one)));
		if (!after) {
			this.found = 0;
			fill(this.hits);
		}
		const { group: field } = this.options.given;
		const named = (group) => `${field === "$id" ? "Document" : field}: ${readable(group)}`;
		const groups = Map.groupBy(found, ({ group }) => group);
		const shown = [...groups].map(([group, members]) => [several && el("li.group.clip", named(group)), this.shown(members, rerank ? "rerank" : this.mode)]).flat(2);
		const elements = shown.filter(Boolean);
		this.hits.append(...elements);
		if (this.found) elements.find((one) => one.matches(".hit"))?.querySelector("button").focus(); // the pressed button no longer exists
		this.found += found.length;
	}

	shown(found, means) {
		const { opened, state, mode, best, weak } = this;
		const toggled = () => state.remember({ opened: [...opened] });
		const about = { corpus: this.corpus.name, mode, means, best, weak, signal: state.signal, opened, toggled, links: (one) => links(state.address, this.corpus.name, one) };
		return byText(found).map((alike) => hit(alike, about));
	}

	nothing() {
		return nothing(this.corpus, { asked: this.like ? "like" : this.asks() && "query", filtered: !isEmpty(this.filter), mode: this.mode, grouped: this.options.on("group"), go: (changes) => this.state.go(changes) });
	}

	// Before the first search, show documents that match the filters, example queries, or some documents.
	async idle(signal, after, k) {
		this.count();
		const filtered = !isEmpty(this.filter);
		const suggested = !filtered && suggestions(this.corpus, (text) => this.askFor(text));
		if (suggested) {
			this.status.textContent = "";
			this.add([], null, { k });
			return fill(this.below, suggested);
		}
		const asked = filtered ? { limit: k, filter: json(this.filter), ...after } : { limit: SAMPLE };
		const path = `${this.path}/documents?${new URLSearchParams(asked)}`;
		const { documents, cursor, count: all, warnings } = await call(path, { signal });
		this.tried.show({ method: "GET", path });
		this.add(documents, after, { k }, warnings);
		fill(this.below, filtered && cursor && button("More documents", () => this.search({ cursor })), !this.found && this.nothing());
		const fits = `${counted(all, "document")} ${all === 1 ? "fits" : "fit"} the filters${cursor ? `, oldest first; ${this.found} are shown` : ""}. Write a query to search in them.`;
		const some = `Some of its documents.${touched ? "" : " Press / to write, arrows to move, Enter to open."}`;
		this.status.textContent = !this.found ? "" : filtered ? fits : some;
	}

	askFor(text) {
		this.query.value = text;
		this.ask();
		this.settle();
	}

	async failed(error, after) {
		this.status.textContent = "";
		if (!after) this.add([], null, { k: PAGE });
		fill(this.below, failure(error, () => this.search(after)));
		if (error.status !== 409) return;
		const [{ name }, { signal }] = [this.corpus, this.asked];
		const { followReembedding, wayOut } = await import("../reembedding.js");
		if (signal.aborted) return;
		this.below.append(wayOut(name));
		followReembedding(name, this.below, { failed: (other) => this.failed(other, null), ended: () => this.search(), signal });
	}
}
