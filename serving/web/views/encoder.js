// View of the encoder: its quality, its speed, and how both were measured.

import { call } from "../api.js";
import { chart, figure } from "../chart.js";
import { card, div, facts, labelled, scrolled, select } from "../controls.js";
import { el, fill } from "../dom.js";
import { count } from "../format.js";
import { keysMatter } from "../key.js";
import { live } from "../live.js";
import { tryIt } from "../snippets.js";
import { failure, left, loading } from "../states.js";

const NAMES = { STSB: "STS-B", SICKR: "SICK-R", SST2: "SST-2" };
const SCORES = {
	sts: { name: "Semantic textual similarity", unit: "Spearman × 100", score: (task) => task.spearman?.all },
	transfer: { name: "Transfer tasks", unit: "Accuracy, %", score: (task) => task.accuracy },
};
const GEOMETRY = {
	alignment: "Alignment, of pairs that mean the same; better the lower",
	uniformity: "Uniformity, over the sphere; better the lower",
	random_cosine_mean: "Mean cosine of different sentences; best near 0",
	random_cosine_sd: "Its standard deviation",
};
const CURVES = { stsb_dev_spearman: "STS-B dev", dev_spearman: "Own development pairs", known_item_ndcg10: "Known items", self_retrieval_mrr10: "Self-retrieval", uniformity: "Uniformity", alignment: "Alignment" };

export async function show(place, state) {
	fill(place, loading());
	const models = (await call("v1/models", { signal: state.signal })).data.map(({ id }) => id);
	const model = models.includes(state.address.get("model")) ? state.address.get("model") : models[0];
	const info = await call(`info?${new URLSearchParams({ model })}`, { signal: state.signal });
	const judged = div("judged", loading("Reading the report …"));
	const tried = tryIt();
	const which = models.length > 1 && div("row", labelled("Model", select(models, model, (chosen) => state.go({ model: chosen }))));
	fill(place, which, about(info), live(state.signal), engines(info), judged, tried.element);
	if (!info.report) {
		tried.show({ method: "GET", path: "info" });
		const known = facts(Object.entries(info.scores).map(([task, score]) => [NAMES[task] ?? CURVES[task] ?? task, score.toPrecision(4)]));
		return fill(judged, card("Scores", known, el("p.muted.clip", "No report: isosphere promote <bundle> creates one.")));
	}
	const request = { method: "GET", path: `models/${encodeURIComponent(model)}/report` };
	tried.show(request);
	const read = async () => {
		try {
			const report = await call(request.path, { signal: state.signal, headers: { accept: "application/json" } });
			fill(judged, parts(report, `${request.path}?format=html`));
		} catch (error) {
			if (!left(error)) fill(judged, failure(error, read));
		}
	};
	return read();
}

const fixed = (number, digits = 2) => (Number.isFinite(number) ? number.toFixed(digits).replace("-", "−") : "–");
const cells = (values, tag, attributes) => values.map((value) => el(`${tag}.number`, { ...attributes }, value));
// head: title of the first column, then titles of numbers; rows: { name, values, own }
function table(name, head, rows) {
	const lines = rows.map(({ name: first, values, own }) => el("tr", { class: own && "own" }, el("th", { scope: "row" }, first), cells(values, "td")));
	const top = el("tr", el("th", { scope: "col" }, head[0]), cells(head.slice(1), "th", { scope: "col" }));
	return scrolled(name, el("table", el("thead", top), el("tbody", lines)));
}

function about(info) {
	const { about: story, seed, corpus, teacher } = info.training ?? {};
	const told = {
		Training: story ?? (!info.objective && "unchanged, as it was published"),
		Objective: info.objective,
		Backbone: info.backbone,
		Teacher: teacher,
		"Trained on": corpus?.name,
		Sentences: corpus?.sentences && count(corpus.sentences),
		Seed: seed,
		Dimensions: info.dim,
		"Tokens it reads": info.max_input_length,
		Pooling: info.model_type?.embedding?.pooling,
		"Runs on": info.engine && `${info.engine}, ${info.precision}, ${info.device}`,
		"Exported graph differs by": info.parity !== null && `${info.parity.toExponential(1)} at most`,
		Fingerprint: info.fingerprint.slice(0, 12),
	};
	return card(info.served_model_name, facts(Object.entries(told)));
}

function engines({ engines: measured, engine, precision }) {
	if (!measured?.length) return card("Precision", el("p.muted", engine ? `${engine} in ${precision}: requested, or the only choice here, so it was not measured.` : "The model is not loaded."));
	const best = measured.find(({ chosen }) => chosen);
	const asked = measured.some((one) => one.why_not === "not asked for");
	const why = asked ? "was asked for" : "was the fastest here whose vectors are those of float32 (cosine ≥ 0.999, rank loss ≤ 0.1)";
	const rows = measured.map((one) => ({
		name: `${one.runtime}, ${one.precision}`,
		own: one.chosen,
		values: [fixed(one.texts_per_second, 0), fixed(one.times_reference, 1), fixed(one.least_cosine, 5), fixed(one.rank_loss, 3), one.chosen ? "chosen" : one.why_not],
	}));
	return card(
		"Precision",
		best && el("p.muted", `${best.runtime} in ${best.precision} ${why}.`),
		table("Engines", ["Engine", "Texts/s", "× float32", "Least cosine", "Rank loss", ""], rows),
	);
}

function parts({ evaluations = [], papers = {} }, page) {
	const whole = !keysMatter() && el("p", el("a", { href: page }, "The whole report"));
	return [Object.keys(SCORES).map((family) => scores(family, evaluations, papers[family])), retrieval(evaluations), geometry(evaluations), evaluations.slice(0, 1).map(curves), whole];
}

function scores(family, evaluations, papers) {
	const { name, unit, score } = SCORES[family];
	const measured = evaluations.filter((one) => one[family]?.tasks);
	if (!measured.length) return null;
	const tasks = papers?.tasks ?? Object.keys(measured[0][family].tasks);
	const own = measured.map(({ subject, [family]: found }) => ({ name: subject.name ?? "this encoder", own: true, mean: found.mean, values: tasks.map((task) => fixed(score(found.tasks[task] ?? {}))) }));
	const theirs = (papers?.rows ?? []).map((row) => ({ name: `${row.method}, ${row.backbone}`, mean: row.mean, source: row.source, values: tasks.map((_, i) => fixed(row.tasks?.[i])) }));
	const rows = [...own, ...theirs].sort((a, b) => (b.mean ?? 0) - (a.mean ?? 0)).map((row) => ({ ...row, values: [fixed(row.mean), ...row.values] }));
	const sources = theirs.length > 0 && el("details", el("summary", "Where the papers' rows are from"), el("ul", theirs.map((row) => el("li.muted", `${row.name}: ${row.source}`))));
	const others = papers?.unreported ?? [];
	const note = others.length ? `The papers don't report ${others.join(" and ")}: their rows are for orientation.` : "Between single runs, less than a point is noise.";
	return card(name, theirs.length > 0 && el("p.muted", note), table(`Scores: ${name}`, [unit, "Mean", ...tasks.map((task) => NAMES[task] ?? task)], rows), sources);
}

function retrieval(evaluations) {
	const rows = evaluations.flatMap(({ subject, retrieval: found }) =>
		Object.entries(found ?? {}).map(([collection, one]) => ({ name: `${subject.name}, ${collection}`, own: true, values: [fixed(one.ndcg10), fixed(one.mrr10), fixed(one.recall100)] })),
	);
	return rows.length > 0 && card("Retrieval", table("Retrieval", ["× 100", "nDCG@10", "MRR@10", "Recall@100"], rows));
}

function geometry(evaluations) {
	const measured = evaluations.filter((one) => one.geometry);
	const rows = Object.entries(GEOMETRY)
		.filter(([key]) => measured.some(({ geometry: found }) => Number.isFinite(found[key])))
		.map(([key, name]) => ({ name, values: measured.map(({ geometry: found }) => fixed(found[key], 3)) }));
	return rows.length > 0 && card("Geometry of the embeddings", table("Geometry", ["", ...measured.map(({ subject }) => subject.name)], rows));
}

function curves({ curve = [], best_step: best = null }) {
	const figures = Object.entries(CURVES).flatMap(([key, name]) => {
		const points = curve.filter((one) => Number.isFinite(one[key]) && Number.isFinite(one.step)).map((one) => [one.step, one[key]]);
		if (points.length < 2) return [];
		const digits = key === "stsb_dev_spearman" ? 2 : 3;
		const at = points.find(([step]) => step === best) ?? points.at(-1);
		const ends = [points[0], points.at(-1)].map(([step]) => `step ${count(step)}`);
		const told = `${fixed(at[1], digits)} at ${count(at[0])}`;
		return [figure(name, told, chart(`${name} over the steps of training: ${told}`, [points], { written: (value) => fixed(value, digits), marked: best, ends }))];
	});
	return figures.length > 0 && card("Training", el("div.figures", figures));
}
