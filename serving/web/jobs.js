// Jobs of the server, with their progress.

import { call } from "./api.js";
import { link } from "./app.js";
import { button, div } from "./controls.js";
import { el, fill } from "./dom.js";
import { bytes, count, counted, date, duration } from "./format.js";
import { failure, left } from "./states.js";

const KINDS = {
	ingest: ["Adding documents to", "documents"],
	reembed: ["Embedding again", "passages"],
	snapshot: ["A snapshot of", "documents"],
	restore: ["Restoring", "documents"],
	map: ["Mapping", "steps"],
	adapt: ["Adapting an encoder to", "steps"],
};
const BADGES = { queued: "muted", running: "muted", succeeded: "good", failed: "wrong", cancelled: "warn" };
const PAUSE_MS = [1000, 2000, 5000];

export const active = ({ state }) => state === "queued" || state === "running";

// Return all jobs, or those of one corpus, newest first. The server returns them in pages; `latest`: only the first page.
export async function listJobs({ corpus, latest, signal }) {
	const jobs = [];
	let cursor = null;
	do {
		const query = new URLSearchParams({ ...(corpus && { corpus }), ...(cursor && { cursor }) });
		const page = await call(`jobs?${query}`, { signal });
		jobs.push(...page.jobs);
		({ cursor } = page);
	} while (cursor && !latest);
	return jobs;
}

// Call seen(job) every second until the job ends, and lost(error) while the server does not tell its state. The page does not use
// the stream of the job's events, because a browser opens only six connections to a server, in all its tabs together.
export async function follow(id, { signal, seen, lost }) {
	for (let tries = 0; !signal.aborted; tries++) {
		try {
			const job = await call(`jobs/${id}`, { signal });
			tries = 0;
			seen(job);
			if (!active(job)) return;
		} catch (error) {
			if (left(error)) return;
			if (error.status && error.status < 500 && error.status !== 429) throw error;
			lost(error);
		}
		await new Promise((resolve) => setTimeout(resolve, PAUSE_MS[tries] ?? PAUSE_MS.at(-1)));
	}
}

// If a job of this kind is under way for the corpus, show it in `place` with `said` above, and call ended(job) when it has ended;
// `failed(error)` if it can't be changed. If the jobs can't be listed, the user may try again by ended() without a job.
export async function followWork(kind, corpus, place, { said, failed, ended, signal }) {
	try {
		const jobs = await listJobs({ corpus, signal });
		const job = jobs.find((one) => active(one) && one.kind === kind);
		if (!job) return;
		const row = jobRow(failed);
		row.show(job);
		fill(place, said && el("p", { role: "status" }, said), el("ul.works", row.element));
		let last = job;
		await follow(job.id, { signal, seen: (now) => row.show((last = now)), lost: row.lost });
		if (!signal.aborted) ended(last);
	} catch (error) {
		if (!left(error)) fill(place, failure(error, () => ended()));
	}
}

// One job in a list; show(job) shows it as it is now, lost(error) that this is not known. `outcome(job)` shows what it found, once it
// has.
export function jobRow(failed, outcome = () => null) {
	const [title, state, bar, said] = [el("p"), el("span", { role: "status" }), el("progress"), el("p")];
	const [actions, more] = [div("actions"), div("more")];
	const element = el("li.card.work", div("heading", title, state), bar, div("heading", said, actions), more);
	let before = {};

	function show(job) {
		const [does, things] = KINDS[job.kind] ?? [job.kind, "parts"];
		if (job.state !== before.state) {
			fill(title, does, " ", el("strong.clip", job.corpus));
			state.textContent = job.state;
			state.className = BADGES[job.state];
			fill(actions, buttons(job));
			bar.hidden = !active(job);
			element.classList.toggle("ended", !active(job));
			bar.setAttribute("aria-label", `${does} ${job.corpus}`);
		}
		if (job.total && job.state === "running") Object.assign(bar, { max: job.total, value: job.done });
		else bar.removeAttribute("value");
		said.className = "muted";
		said.textContent = told(job, things);
		if (job.error_count !== before.error_count || job.state !== before.state) {
			const opened = more.querySelector("[open]") && { open: true }; // the user may have opened it
			fill(more, errors(job), job.state === "succeeded" && outcome(job));
			Object.assign(more.firstElementChild ?? {}, opened);
		}
		before = job;
	}

	function buttons(job) {
		if (active(job)) return button("Cancel", () => cancel(job), { "aria-label": `Cancel: ${title.textContent}` });
		if (job.state !== "succeeded" || ["snapshot", "adapt"].includes(job.kind)) return null;
		const [view, name] = job.kind === "map" ? ["map", "See it"] : ["search", "Search it"];
		return el("a.button", { href: link(view, { corpus: job.corpus }) }, name);
	}

	async function cancel(job) {
		try {
			show(await call(`jobs/${job.id}`, { method: "DELETE" }));
		} catch (error) {
			failed(error);
		}
	}

	return {
		element,
		show,
		lost({ status, message }) {
			said.className = "warn";
			const refused = status === 429 || status === 500; // other errors come from a server that is restarted, or from its proxy
			said.textContent = refused ? `${message} The page asks again.` : "The connection to the server was lost. The job continues when the server runs again.";
		},
	};
}

function told({ kind, state, done, total, rate, eta_s: eta, created, started, finished, result }, things) {
	if (state === "queued") return "Waits for earlier jobs.";
	if (state === "running" && !total) return kind === "ingest" ? "Checks every row before the first is stored." : "Under way.";
	if (state === "running" && kind === "adapt" && done === total) return "Compares the encoders on passages that were held out.";
	const far = total ? `${count(done)} of ${count(total)} ${things}` : "";
	const pace = rate ? `${count(rate < 10 ? Number(rate.toFixed(1)) : Math.round(rate))}/s` : "";
	if (state === "running") return [far, pace, eta === null ? "" : `${duration(eta)} left`].filter(Boolean).join(" · ");
	const took = finished && started ? `in ${duration(finished - started)}` : "";
	if (state === "succeeded" && kind === "snapshot") return `${bytes(result.bytes)}, ${date(result.created)}`;
	if (state === "succeeded" && kind === "map") return [counted(result.points, "passage"), took].join(" ");
	if (state === "succeeded" && kind === "adapt") return [result.model ? "A better encoder was found" : "No better encoder was found", took].join(" ");
	if (state === "succeeded") return [counted(result?.count ?? result?.documents ?? done, things.slice(0, -1)), took].join(" ");
	return `${kind === "ingest" && done ? `${counted(done, "document")} stored before that, and kept. ` : ""}${date(finished ?? created)}`;
}

function errors({ kind, state, errors: known, error_count: all, done }) {
	if (!known.length) return null;
	const failed = state === "failed";
	const nothing = failed && kind === "ingest" && !done;
	const advice = nothing && /^(line|documents)\b/.test(known[0].place) && " Correct it, or upload again and skip invalid rows.";
	const what = nothing ? "Nothing was stored" : failed ? "It failed" : `${counted(all, "row was", "rows were")} left out`;
	const lines = known.map(({ place, error }) => el("li.clip", error.startsWith(place) ? error : `${place}: ${error}`));
	const shown = all > known.length && `; the first ${known.length}`;
	return el("details", { open: failed, class: failed && "wrong" }, el("summary", what, shown), el("ul", lines), advice);
}
