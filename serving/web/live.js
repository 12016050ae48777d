// Current load of the server, from /metrics.

import { call, send } from "./api.js";
import { chart, figure } from "./chart.js";
import { button, div, status } from "./controls.js";
import { el, fill } from "./dom.js";
import { duration } from "./format.js";
import { failure, left } from "./states.js";

const EVERY_MS = 2000;
const SHOWN = 120; // seconds that the charts show
const SENT = 40; // requests of a speed test
const TRIED = "How quick is one sentence?";
const ENDS = [`${SHOWN / 60} min ago`, "now"];

// Return an element that shows the load, until `signal` is aborted.
export function live(signal) {
	const charts = div("figures");
	const said = status();
	const sender = button(`Send ${SENT} requests`, load);
	const seen = []; // oldest first: { time, texts, waiting, buckets }

	async function watch() {
		try {
			if (!document.hidden || !seen.length) seen.push(measured(await (await send("metrics", { signal })).text()));
			seen.splice(0, seen.findIndex(({ time }) => time >= seen.at(-1).time - SHOWN)); // a hidden page and a slow server measure less often
			fill(charts, drawn(seen));
		} catch (error) {
			if (left(error)) return;
			return fill(charts, failure(error, watch));
		}
		setTimeout(() => signal.aborted || watch(), EVERY_MS);
	}

	async function load() {
		sender.disabled = true;
		const started = performance.now();
		try {
			for (let sent = 0; sent < SENT; sent++) {
				said.textContent = `${sent} of ${SENT} sent, one after the other …`;
				await call("embed", { body: { inputs: `${TRIED} ${sent}` }, signal });
			}
			said.textContent = `${duration((performance.now() - started) / 1000 / SENT)} each, including the network.`;
		} catch (error) {
			if (!left(error)) said.textContent = error.message;
		}
		sender.disabled = false;
	}

	watch();
	return div("card", div("heading", el("h2", "Now"), said, sender), charts);
}

// Return the numbers about requests in the text for Prometheus.
function measured(text) {
	const sample = /^(\w+)(?:\{(.*)\})? (\S+)/gm;
	const found = { time: performance.now() / 1000, texts: 0, waiting: 0, buckets: [] };
	for (const [, name, labels, value] of text.matchAll(sample)) {
		if (name === "te_embed_success") found.texts += Number(value);
		if (name === "te_queue_size") found.waiting = Number(value);
		if (name === "te_request_duration_bucket") found.buckets.push([Number(/le="([^"]+)"/.exec(labels)[1].replace("+Inf", "Infinity")), Number(value)]);
	}
	return found;
}

// Return a quantile of the observations between two measurements, or null without observations. It is interpolated within a bucket.
export function quantile(share, before, after) {
	const counts = after.map(([limit, count], i) => [limit, count - (before[i]?.[1] ?? 0)]);
	const wanted = share * (counts.at(-1)?.[1] ?? 0);
	if (!(wanted > 0)) return null;
	const i = counts.findIndex(([, count]) => count >= wanted);
	const [limit, count] = counts[i];
	const [from, below] = counts[i - 1] ?? [0, 0];
	return Number.isFinite(limit) ? from + ((limit - from) * (wanted - below)) / (count - below) : from;
}

function drawn(seen) {
	const start = seen.at(-1).time - SHOWN;
	const line = (value) => [[start, null], ...seen.slice(1).map((now, i) => [now.time, value(seen[i], now)])];
	const [middle, slow] = [0.5, 0.99].map((share) => line((before, now) => quantile(share, before.buckets, now.buckets)));
	const rate = line((before, now) => Math.max(0, now.texts - before.texts) / (now.time - before.time));
	const drawing = (name, lines, written) => {
		const told = lines.map((points) => points.findLast(([, y]) => y !== null)).map((last) => (last ? written(last[1]) : "–")).join(" · ");
		return figure(name, told, chart(`${name}: ${told}`, lines, { zero: true, ends: ENDS, written }));
	};
	return [
		drawing("Latency, p50 and p99", [middle, slow], duration),
		drawing("Texts embedded", [rate], (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)}/s`),
		drawing("Texts waiting", [line((_, now) => now.waiting)], String),
	];
}
