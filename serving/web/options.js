// Options of a search. The address has all of them.

import { div, labelled, select } from "./controls.js";
import { el, fill } from "./dom.js";

const RERANKED = 50; // reranked hits; more hits take longer and improve little
const [SORTED, DIVERSE] = [1000, 200]; // maximum passages that the server can arrange
const HITS = 10_000; // maximum hits in all groups together
const LARGEST = 100; // maximum hits in a group
const ADDRESSED = {
	sort: (value) => value,
	group: (value) => value,
	size: (value) => (value > 1 ? value : null),
	diversity: (value) => value || null,
	rerank: (value) => (value ? "on" : null),
	prefix: (value) => (value ? null : "off"),
	typos: (value) => (value ? null : "off"),
	explain: (value) => (value ? "on" : null),
};
const LACKED = { prefix: "prefix", typos: "typos", rerank: "rerank", model: "rerank" }; // by the field of the server's error
const refusals = new Map(); // reasons by corpus and option

export class Options {
	// changed(changes) is called with changes of the address.
	constructor(corpus, address, changed) {
		if (!refusals.has(corpus)) refusals.set(corpus, {});
		Object.assign(this, { refused: refusals.get(corpus), changed, asked: { mode: "dense", like: false }, shown: new Map() });
		const within = (name, least, most) => Math.min(most, Math.max(least, Number(address.get(name)) || least));
		this.given = {
			sort: /.:(asc|desc)$/.test(address.get("sort") ?? "") ? address.get("sort") : "",
			group: address.get("group") ?? "",
			size: Math.floor(within("size", 1, LARGEST)),
			diversity: within("diversity", 0, 1),
			rerank: address.get("rerank") === "on",
			prefix: address.get("prefix") !== "off",
			typos: address.get("typos") !== "off",
			explain: address.get("explain") === "on",
		};
		const open = Object.keys(ADDRESSED).some((name) => address.has(name));
		this.element = el("details.options", { open }, el("summary", "Options"), div("row", this.controls()));
		this.offer([]);
	}

	controls() {
		const { given } = this;
		const [sort, group] = ["sort", "group"].map((name) => select([], "", (value) => this.set(name, value)));
		const size = el("input", { type: "number", min: 1, max: LARGEST, value: given.size, onchange: () => this.set("size", (size.value = sizeOf(size))) });
		const degree = el("output", String(given.diversity));
		const diversity = el("input", {
			type: "range",
			"aria-label": "Diversity",
			max: 1,
			step: 0.1,
			value: given.diversity,
			oninput: () => (degree.value = diversity.value),
			onchange: () => this.set("diversity", diversity.valueAsNumber),
		});
		const check = (name, text) => {
			const input = el("input", { type: "checkbox", checked: given[name], onchange: () => this.set(name, input.checked) });
			return this.control(name, input, el("label.check", input, text));
		};
		Object.assign(this, { sort, group });
		return [
			this.control("sort", sort, labelled("Sort by", sort)),
			this.control("group", group, labelled("Group by", group)),
			this.control("size", size, labelled("Hits in a group", size)),
			this.control("diversity", diversity, el("label.field", el("span", "Diversity ", degree), diversity)),
			div(
				"checks",
				check("prefix", "Complete the last word"),
				check("typos", "Find words with typos"),
				check("rerank", `Rerank the first ${RERANKED} hits by late interaction (slower)`),
				check("explain", "Explain the ranks and scores"),
			),
		];
	}

	// Add a control, with a place for the reason why it is disabled.
	control(name, input, label) {
		const why = el("span.muted.why", { id: `why-${name}` });
		input.setAttribute("aria-describedby", why.id);
		this.shown.set(name, { input, why });
		return div("option", label, why);
	}

	offer(fields) {
		const { given } = this;
		const names = (kinds) => fields.filter((field) => field.kinds.some((kind) => kinds.includes(kind))).map(({ field }) => field);
		const chosen = given.sort.replace(/:(asc|desc)$/, "");
		const sorts = [...new Set([...names(["string", "number", "boolean"]), chosen])].filter(Boolean);
		const groups = [...new Set([...names(["string", "number", "boolean", "list"]), given.group])].filter((name) => name && name !== "$id");
		const ordered = sorts.flatMap((name) => [[`${name}:asc`, `${name}, ascending`], [`${name}:desc`, `${name}, descending`]]);
		choose(this.sort, [["", "relevance"], ...ordered], given.sort);
		choose(this.group, [["", "nothing"], ["$id", "document"], ...groups.map((name) => [name, name])], given.group);
		this.show(this.asked);
	}

	show(asked) {
		this.asked = asked;
		for (const [name, { input, why }] of this.shown) {
			why.textContent = this.why(name);
			input.disabled = Boolean(why.textContent);
			if (this.refused[name]) input.checked = false;
		}
		this.shown.get("size").input.closest(".option").hidden = !this.given.group;
	}

	set(name, value) {
		this.given[name] = value;
		this.show(this.asked);
		this.changed({ [name]: ADDRESSED[name](value) });
	}

	// Return the reason why an option is disabled, or "" if it is not.
	why(name) {
		const { given, asked } = this;
		if (this.refused[name]) return this.refused[name];
		if (name === "rerank") return asked.like ? "Reranking needs a query." : "";
		if (name === "prefix" || name === "typos") return asked.mode === "dense" ? "Search by words or by both to use this." : "";
		if (this.on("rerank")) return "Not together with reranking.";
		return name === "diversity" && given.sort ? "Not together with sorting." : "";
	}

	on(name) {
		return Boolean(this.given[name]) && !this.why(name);
	}

	// Return true if the server refused an option that the corpus does not support. The option is then disabled.
	refuse({ status, message }) {
		const [, field, reason] = /^(\w+)[^:]*: (.*)$/s.exec(message) ?? [];
		const name = Object.hasOwn(LACKED, field ?? "") && LACKED[field];
		if (status !== 422 || !name || !this.on(name)) return false;
		this.refused[name] = reason[0].toUpperCase() + reason.slice(1);
		this.element.open = true;
		this.show(this.asked);
		return true;
	}

	// True if hits are arranged, so that pages have no cursor.
	get arranged() {
		return ["sort", "group", "diversity", "rerank"].some((name) => this.on(name));
	}

	// Maximum number of hits or groups on all pages together.
	get most() {
		if (this.on("rerank")) return RERANKED;
		if (this.on("diversity")) return DIVERSE;
		return this.on("group") ? Math.min(SORTED, Math.floor(HITS / this.given.size)) : SORTED;
	}

	// Options for the words of lexical and hybrid searches.
	get words() {
		return Object.fromEntries(["prefix", "typos"].filter((name) => this.on(name)).map((name) => [name, true]));
	}

	// Return the options as a part of the request.
	get body() {
		const { sort, group, size, diversity } = this.given;
		return {
			...this.words,
			...(this.on("sort") && { sort: [sort] }),
			...(this.on("group") && { group_by: group, ...(size > 1 && { group_size: size }) }),
			...(this.on("diversity") && { diversity }),
			...(this.on("rerank") && { rerank: { method: "late_interaction", candidates: RERANKED } }),
			...(this.on("explain") && { explain: true }),
		};
	}
}

const sizeOf = (input) => Math.min(LARGEST, Math.max(1, Math.floor(input.valueAsNumber) || 1));

function choose(element, options, value) {
	fill(element, options.map(([one, name]) => el("option", { value: one }, name)));
	element.value = value;
}
