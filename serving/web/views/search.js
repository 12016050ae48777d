// Search a corpus: by meaning, by words, or both.

import { call } from "../api.js";
import { link } from "../app.js";
import { chance } from "../chance.js";
import { chooser, wanted } from "../chooser.js";
import { button, choice, div, status, touched, typing } from "../controls.js";
import { el, fill } from "../dom.js";
import { chip, filterOf, filters, isEmpty } from "../filters.js";
import { counted, json } from "../format.js";
import { byText, hit, isWeak } from "../hits.js";
import { active, follow, jobRow, listJobs } from "../jobs.js";
import { nothing } from "../nothing.js";
import { cut } from "../passages.js";
import { tryIt } from "../snippets.js";
import { failure, left } from "../states.js";

const PAGE = 10;
const MOST = 1000; // hits of a request
const SAMPLE = 5; // documents that are shown before anything is asked
const PAUSE_MS = 150; // after a key
const SLOW_MS = 200; // a search that takes longer is seen to run
const MOST_LIKE = 2000; // characters of a document that others are to be like
// What can be asked of the corpus that a server comes with.
const EXAMPLES = { "python-docs": ["pick a random element of a list", "read a gzip file", "tell whether a year has 366 days"] };
const MODES = { dense: "Meaning", lexical: "Words", hybrid: "Both" };

export async function show(place, state) {
	const { listed, corpus } = await wanted(place, state);
	if (corpus) await new Search(place, state, listed, corpus).start();
}

class Search {
	constructor(place, state, listed, corpus) {
		Object.assign(this, { place, state, listed, corpus, path: `corpora/${corpus.name}`, found: 0 });
		this.opened = new Set(state.remembered.opened);
		this.mode = Object.hasOwn(MODES, state.address.get("mode") ?? "") ? state.address.get("mode") : "dense";
		this.filter = filterOf(state.address.get("filter"));
		this.asked = new AbortController(); // by the next search: no answer comes out of order
		this.settled = state.address.has("q"); // the back button leads to whole queries, not to every letter
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
		this.chosen = div("chosen");
		this.aside = el("aside", { "aria-label": "Filters" });
		this.warnings = el("ul.warn");
		this.hits = el("ol.hits");
		this.below = div("below");
		this.tried = tryIt();
		const about = this.corpus.description && el("p.muted.clip", this.corpus.description);
		fill(
			this.place,
			el("form.row", { role: "search", onsubmit: (event) => this.submitted(event) }, this.controls()),
			about,
			div("columns", this.aside, div("found", this.chosen, this.status, this.warnings, this.hits, this.below)),
			this.tried.element,
		);
		document.addEventListener("keydown", (event) => this.key(event), { signal: state.signal });
		state.signal.addEventListener("abort", () => {
			clearTimeout(this.timer);
			this.asked.abort();
		});
		if (!touched) this.query.focus({ preventScroll: true });
		this.offerFilters();
		return this.search(null, state.remembered.k);
	}

	controls() {
		const to = ({ name }) => this.state.go({ corpus: name, filter: null, like: null, span: null });
		return [
			chooser(this.listed, this.corpus, to),
			el("label.field.wide", el("span", "Query"), this.query),
			choice("Search by", Object.entries(MODES), this.mode, (mode) => this.setMode(mode)),
		];
	}

	setMode(mode) {
		this.mode = mode;
		this.state.keep({ mode: mode === "dense" ? null : mode }, { push: true });
		this.search();
	}

	typed() {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => this.ask(), PAUSE_MS);
	}

	submitted(event) {
		event.preventDefault();
		clearTimeout(this.timer);
		this.ask();
		this.settle();
	}

	ask() {
		const q = this.query.value.trim();
		this.state.keep({ corpus: this.corpus.name, q, like: null, span: null }, { push: this.settled });
		this.settled = false;
		this.search();
	}

	settle() {
		this.settled = this.query.value.trim() !== "";
	}

	key(event) {
		if (event.key === "/" && !typing(event) && !event.ctrlKey && !event.metaKey) {
			event.preventDefault();
			this.query.focus();
			this.query.select();
		}
		const stops = [this.query, ...this.hits.querySelectorAll(".opens")];
		const at = stops.indexOf(event.target);
		if (at < 0) return;
		if (event.key === "Escape") this.query.focus();
		const next = stops[at + { ArrowDown: 1, ArrowUp: -1 }[event.key]];
		if (!next) return;
		event.preventDefault();
		next.focus({ preventScroll: true });
		next.scrollIntoView({ block: "nearest" });
	}

	async offerFilters() {
		try {
			const { fields } = await call(`${this.path}/fields`, { signal: this.state.signal });
			const { panel, chips } = filters(fields, this.filter, (filter) => this.filtered(filter));
			fill(this.aside, panel);
			this.aside.hidden = panel === null;
			this.chips = chips;
			this.showChosen();
		} catch (error) {
			if (!left(error)) fill(this.aside, failure(error, () => this.offerFilters()));
		}
	}

	filtered(filter) {
		this.filter = filter;
		this.state.keep({ filter: isEmpty(filter) ? null : json(filter) }, { push: true });
		this.search();
	}

	// What the hits are limited to, and which document they are to be like.
	showChosen() {
		const id = this.state.address.get("like");
		fill(this.chosen, id && div("chips", chip(`like ${id}`, () => this.state.go({ like: null, span: null }))), this.chips);
	}

	// Ask anew for `k` hits, or for the page after `cursor`.
	async search(cursor = null, k = PAGE) {
		this.asked.abort();
		this.asked = new AbortController();
		const { signal } = this.asked;
		this.showChosen();
		const slow = setTimeout(() => {
			this.place.classList.add("busy");
			this.status.textContent = "Searching …";
		}, SLOW_MS);
		const began = performance.now();
		try {
			const query = await this.wanted(signal);
			if (!query) return await this.idle(signal, cursor, k);
			const body = {
				query,
				k,
				...(this.mode !== "dense" && { mode: this.mode }),
				...(!isEmpty(this.filter) && { filter: this.filter }),
				...(cursor && { cursor }),
				...(!this.state.address.has("like") && { highlight: true }),
			};
			const answer = await call(`${this.path}/search`, { body, signal });
			const waited = performance.now() - began;
			// After the search, which a key's limit must not refuse for it.
			this.weak = this.mode === "lexical" ? null : await (this.measured ??= chance(this.corpus, this.state.signal));
			this.tried.show({ method: "POST", path: `${this.path}/search`, body });
			await this.answered(answer, cursor, waited, k);
		} catch (error) {
			if (!left(error)) this.failed(error, cursor);
		} finally {
			clearTimeout(slow);
			if (this.asked.signal === signal) this.place.classList.remove("busy");
		}
	}

	// The text that is searched for: what was typed, or that of the document that the hits are to be like.
	async wanted(signal) {
		const id = this.state.address.get("like");
		if (!id) return this.query.value.trim();
		const { text } = await call(`${this.path}/documents/${encodeURIComponent(id)}`, { signal });
		const [start, end] = (this.state.address.get("span") ?? "").split("-").map(Number);
		return cut(text, { start, end: Math.min(end || text.length, start + MOST_LIKE) });
	}

	answered({ hits, cursor, took_ms: took, index, warnings }, after, waited, k) {
		const others = hits.filter(({ id }) => id !== this.state.address.get("like"));
		if (after === null) this.best = hits[0]?.score;
		this.add(others, after, k, warnings);
		if (!this.found && cursor) return this.search(cursor, 10 * PAGE); // all of them are the document's own passages
		const how = this.mode === "lexical" ? "" : ` · ${index === "exact" ? "exact search" : `index ${index}`}`;
		const weak = after === null && hits[0] && isWeak(hits[0], this.mode, this.weak) && "No hit is nearer than chance: the corpus may say nothing about it · ";
		const times = `${Math.round(took)} ms on the server, ${Math.round(waited)} ms in all`;
		this.status.textContent = this.found ? `${weak || ""}${cursor ? "The first " : ""}${counted(this.found, "hit")} · ${times}${how}` : "";
		fill(this.below, cursor && button("More hits", () => this.search(cursor)), this.found === 0 && this.nothing());
	}

	// Show `found` beneath what is there, or alone; `k` were asked for.
	add(found, after, k, warnings = []) {
		this.k = Math.min(MOST, after ? this.k + k : k);
		this.state.remember({ k: this.k });
		fill(this.warnings, warnings.map((one) => el("li.clip", one)));
		if (after === null) {
			this.found = 0;
			fill(this.hits);
		}
		const shown = this.shown(found);
		this.hits.append(...shown);
		if (this.found) shown[0]?.querySelector("button").focus(); // the one that was pressed is gone
		this.found += found.length;
	}

	shown(found) {
		const { opened, state, mode, best, weak } = this;
		const toggled = () => state.remember({ opened: [...opened] });
		const about = { corpus: this.corpus.name, mode, best, weak, signal: state.signal, opened, toggled };
		return byText(found).map((alike) => hit(alike, about));
	}

	nothing() {
		const asked = this.state.address.has("like") ? "like" : this.query.value.trim() && "query";
		return nothing(this.corpus, { asked, filtered: !isEmpty(this.filter), mode: this.mode, go: (changes) => this.state.go(changes) });
	}

	// Before anything is asked: what fits the filters, what could be asked, or some of what can be found.
	async idle(signal, after, k) {
		const filtered = !isEmpty(this.filter);
		const examples = EXAMPLES[this.corpus.name];
		if (examples && !filtered && this.corpus.documents) {
			this.add([], null, k);
			fill(this.below, el("p.muted", "Ask for something in your own words, for example:"), div("chips", examples.map((text) => this.example(text))));
			this.status.textContent = "";
			return;
		}
		const asked = filtered ? { limit: k, filter: json(this.filter), ...(after && { cursor: after }) } : { limit: SAMPLE };
		const path = `${this.path}/documents?${new URLSearchParams(asked)}`;
		const { documents, cursor, count: all, warnings } = await call(path, { signal });
		this.tried.show({ method: "GET", path });
		this.add(documents, after, k, warnings);
		fill(this.below, filtered && cursor && button("More documents", () => this.search(cursor)), !this.found && this.nothing());
		const fits = `${counted(all, "document")} ${all === 1 ? "fits" : "fit"} the filters${cursor ? `, oldest first; ${this.found} are shown` : ""}. Write a query to search in them.`;
		const some = `Some of its documents.${touched ? "" : " Press / to write, arrows to move, Enter to open."}`;
		this.status.textContent = !this.found ? "" : filtered ? fits : some;
	}

	example(text) {
		return button(text, () => {
			this.query.value = text;
			this.ask();
			this.settle();
		}, { class: "chip" });
	}

	failed(error, cursor) {
		this.status.textContent = "";
		if (cursor === null) this.add([], null, PAGE);
		const again = () => this.search(cursor);
		if (error.status !== 409) return fill(this.below, failure(error, again));
		fill(this.below, failure(error, again), el("a", { href: link("corpora", { corpus: this.corpus.name }) }, "Embed it again under Corpora"));
		this.followReembedding(this.asked.signal);
	}

	// If a job embeds the corpus again, show the job in place of the error, and search when it has ended.
	async followReembedding(signal) {
		try {
			const jobs = await listJobs({ corpus: this.corpus.name, signal });
			const job = jobs.find((one) => active(one) && one.kind === "reembed");
			if (!job) return;
			const row = jobRow((error) => this.failed(error, null));
			row.show(job);
			fill(this.below, el("p", { role: "status" }, "Another encoder is served now. The corpus can be searched when this job has ended."), el("ul.works", row.element));
			await follow(job.id, { signal, seen: row.show, lost: row.lost });
			if (!signal.aborted) this.search();
		} catch (error) {
			if (!left(error)) fill(this.below, failure(error, () => this.search()));
		}
	}
}
