// The card of a corpus: its contents, the quality of its searches, and actions.

import { offer } from "./adapting.js";
import { call } from "./api.js";
import { link } from "./app.js";
import { ask } from "./ask.js";
import { button, div, facts, labelled, select } from "./controls.js";
import { el, fill } from "./dom.js";
import { bytes, count, counted, date, duration } from "./format.js";
import { snapshots } from "./snapshots.js";
import { left } from "./states.js";

const STATES = {
	stale: ["warn", "embedded by another encoder: embed it again to search it"],
	damaged: ["wrong", "damaged"],
};
const REEMBEDDED = ["muted", "being embedded again: it can be searched when the job has ended"];

// `models`: { name, fingerprint } of each encoder served. `begin(request)` starts a job, `drop()` deletes the corpus,
// `own`: its vectors come with its documents. `reembedded()`: whether a job embeds it again. `opened(open)` is called when its details are opened, and `add()` when more is to be put into it.
export function corpusCard(name, { own, models, reembedded, where, begin, add, drop, opened, signal, open = false }) {
	const path = `corpora/${name}`;
	const badge = el("span", { role: "status" });
	const [about, told, more] = [el("p.muted.clip"), el("div"), el("div")];
	const kept = snapshots(name, { begin, where, signal });
	const details = el(
		"details",
		{ open, ontoggle: toggled },
		el("summary", "Index, snapshots, and more"),
		div(
			"parts",
			el("h3", "Index"),
			more,
			div("heading", el("h3", "Snapshots"), button("Make a snapshot", () => begin({ path: `${path}/snapshots`, method: "POST" }))),
			kept.element,
			!own && offer(name, { models, begin }),
			el("h3", "Corpus"),
			div("actions", button("Add documents", add), !own && button("Embed again …", reembed), button("Delete …", remove, { class: "danger" })),
		),
	);
	const actions = div("actions");
	const heading = div("heading", el("h2.clip", name), badge, actions);
	const element = el("li.card.corpus", heading, about, told, details);
	let corpus = null;

	const damaged = () => corpus.state === "damaged";

	function doors() {
		if (!corpus.documents) return [!damaged() && button("Add documents", add), button("Delete …", remove, { class: "danger" })];
		return Object.entries({ search: "Search", map: "Map" }).map(([view, title]) =>
			el("a.button", { href: link(view, { corpus: name }), "aria-label": `${title} ${name}` }, title),
		);
	}

	function toggled() {
		if (details.open) kept.load();
		opened(details.open);
	}

	function show(now) {
		const other = corpus?.state !== now.state || Boolean(corpus.documents) !== Boolean(now.documents);
		corpus = now;
		if (other) fill(actions, doors());
		const building = now.index_details?.state === "building" && "index under construction, search is exact until then";
		[badge.className, badge.textContent] = (now.state === "stale" && reembedded() && REEMBEDDED) || (STATES[now.state] ?? ["muted", building || (now.documents ? "" : "empty")]);
		about.hidden = !now.description;
		about.textContent = now.description;
		const encoder = models().find(({ fingerprint }) => fingerprint === now.fingerprint)?.name ?? now.fingerprint?.slice(0, 12);
		const known = {
			Documents: count(now.documents),
			Passages: now.passages !== now.documents && count(now.passages),
			Size: bytes(now.bytes),
			Encoder: encoder,
			Index: now.index,
			"Recall@10": now.index === "exact" ? "1 (exact)" : now.recall.toFixed(3),
			Created: date(now.created),
		};
		fill(more, damaged() ? "Not known." : indexFacts(now));
		if (!damaged()) fill(told, now.documents > 0 && facts(Object.entries(known)));
		else if (other) why();
	}

	// The list of corpora does not contain this.
	async function why() {
		try {
			show(await call(path, { signal }));
		} catch (error) {
			if (damaged() && !left(error)) fill(told, el("p.wrong.clip", error.message));
		}
	}

	async function reembed() {
		const known = (one) => one.fingerprint === corpus.fingerprint;
		const encoders = models().map((one) => [one.name, known(one) ? `${one.name} (has embedded it)` : one.name]);
		const given = await ask({
			title: `Embed ${name} again?`,
			text: `${counted(corpus.passages, "passage")} will get new vectors. Searches use the old vectors until all new vectors are computed.`,
			fields: [labelled("Encoder", select(encoders, encoders[0][0], null, { name: "model" }))],
			action: "Embed it",
		});
		if (given) begin({ path: `${path}/reembed`, method: "POST", body: { model: given.get("model") } });
	}

	async function remove() {
		const typed = el("input", { name: "typed", autocomplete: "off", spellcheck: "false" });
		const held = damaged() ? "A damaged file is kept, under another name." : corpus.documents > 0 && `Its ${counted(corpus.documents, "document")} will be gone.`;
		const given = await ask({
			title: `Delete ${name}?`,
			text: `${held || "It is empty."} Snapshots stay, for a corpus of that name.`,
			fields: held ? [labelled("Type the name of the corpus to delete it", typed)] : [],
			action: "Delete it",
			danger: true,
			ready: (form) => !held || form.get("typed") === name,
		});
		if (given) drop();
	}

	return { element, show, reload: () => details.open && kept.load() };
}

function indexFacts({ index_details: index, recall_target: target, stemming }) {
	if (!index) return "None before the first document.";
	const approximate = index.kind !== "exact";
	const given = Object.entries(index.parameters).map(([name, value]) => `${name} ${count(value)}`);
	const share = (one) => `${Number((100 * one).toPrecision(2))} %`;
	const filtered = Object.entries(index.recall_by_filter).map(([one, recall]) => `${recall.toFixed(3)} with a filter that matches ${share(one)}`);
	const known = {
		"Recall asked for": target,
		Words: stemming === "porter" && "by English stems",
		"Measured on": index.queries > 0 && `${count(index.queries)} passages held out`,
		"Filtered recall": filtered.length > 0 && filtered.join(", "),
		Parameters: given.length > 0 && given.join(", "),
		"Memory and files": bytes(index.bytes),
		"Built in": approximate && duration(index.build_seconds),
		"Since the build": approximate && `${count(index.tail)} added, ${count(index.dead)} gone`,
		"Why it is exact": index.reason,
	};
	return facts(Object.entries(known));
}
