// Controls for adapting an encoder to a corpus, and the result of an adaptation.

import { call } from "./api.js";
import { served } from "./app.js";
import { ask } from "./ask.js";
import { button, div, labelled, scrolled, select, status, table } from "./controls.js";
import { el } from "./dom.js";
import { counted } from "./format.js";
import { hasKey } from "./key.js";
import { asCurl, copier } from "./snippets.js";
import { left } from "./states.js";

const STAGES = { trained: "Trained on the corpus", whitened: "Trained, and partly whitened" };
const DOES = "Trains an encoder on the passages of this corpus, without labels, so that a sentence finds its passage.";
const TAKES = "It takes about ten minutes on two CPUs, longer for more than 2,000 passages. Searches continue, and the served encoders do not change.";

// Return the control for a corpus's card, or nothing if training is not installed. See `corpusCard` for `models` and `begin`.
export function offer(name, { models, begin }) {
	if (!served.adapts) return null;
	async function start() {
		const names = models().map((one) => one.name);
		const given = await ask({
			title: `Adapt an encoder to ${name}?`,
			text: TAKES,
			fields: [labelled("Start from", select(names, names[0], null, { name: "model" }))],
			action: "Adapt it",
		});
		if (given) begin({ path: `corpora/${name}/adapt`, method: "POST", body: { model: given.get("model") } });
	}
	return [el("h3", "Encoder"), el("p.muted", `${DOES} ${TAKES}`), div("actions", button("Adapt the encoder to this corpus …", start))];
}

// Show the result of the job: a comparison of the encoders, the queries that changed most, and how to serve the better encoder.
export function comparison({ corpus, result }, { begin, failed }) {
	const { encoders, queries, passages, start, model, examples } = result;
	if (!encoders.length) return el("p", "Too few passages were held out to compare the encoders, so nothing was kept. Add documents, and try again.");
	const head = ["Encoder", "nDCG@10", "Gain", "95 % interval"].map((one, i) => el(i ? "th.number" : "th", { scope: "col" }, one));
	const best = encoders.find(({ stage }) => stage === result.best);
	return [
		scrolled(`Encoders adapted to ${corpus}`, table(head, encoders.map((one) => cells(one, start)))),
		el("p.muted", `${counted(queries, "query", "queries")} over ${counted(passages, "passage")}: titles and sentences of passages that were held out of training look for their passage.${best?.low <= 0 ? " The interval of the best one includes 0, so its gain may be chance." : ""}`),
		examples.length > 0 && shown(examples),
		model ? further(corpus, result, begin, failed) : el("p", `Nothing searches better than ${start}, so nothing was kept.`),
	];
}

const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;

function cells({ stage, ndcg10, gain, low, high }, start) {
	const name = STAGES[stage] ?? `${start}, as it is`;
	const told = [ndcg10.toFixed(2), ...(gain === undefined ? ["", ""] : [signed(gain), `${signed(low)} to ${signed(high)}`])];
	return [el("th", { scope: "row" }, name), told.map((one) => el("td.number", one))];
}

function shown(examples) {
	const first = ({ own, text }) => el("td", el(own ? "span.good" : "span.muted", own ? "Its passage: " : "Another: "), text);
	const rows = examples.map(({ query, before, after }) => [el("th", { scope: "row" }, query), first(before), first(after)]);
	const head = ["Query", "Finds first, before", "Finds first, after"].map((one) => el("th", { scope: "col" }, one));
	return el("details", el("summary", "Queries that changed most"), scrolled("Examples", table(head, rows)));
}

// Loading an encoder needs a key with the scope `admin`. A server without keys allows it only from its own machine.
function further(corpus, { model, bundle, next }, begin, failed) {
	const [load, reembed] = next.map((request) => ({ ...request, path: request.path.slice(1) }));
	const said = status();
	const commands = [load, reembed].map(asCurl).join("\n\n");
	async function serve() {
		try {
			await call(load.path, load).catch((error) => {
				if (error.status !== 409) throw error; // the encoder is already served
			});
			begin(reembed);
		} catch (error) {
			if (!left(error)) failed(error);
		}
	}
	return el(
		"details.try",
		{ open: true },
		el("summary", "Serve the better one"),
		el("p.clip", el("strong", model), ` is in ${bundle}. These requests serve it, and embed ${corpus} by it. After a restart, the server needs a --bundle for this folder, unless isosphere promote has made it the default.`),
		div("row", hasKey() && begin && button("Serve it and embed again", serve, { class: "primary" }), copier("Copy", () => commands, said), said),
		el("pre", { tabindex: "0", "aria-label": "Commands" }, el("code", commands)),
	);
}
