// A corpus that another encoder embedded: searched when a job has embedded it again.

import { link } from "./app.js";
import { el, fill } from "./dom.js";
import { active, follow, jobRow, listJobs } from "./jobs.js";
import { failure, left } from "./states.js";

// The way out where no job does it.
export const wayOut = (corpus) => el("a", { href: link("corpora", { corpus }) }, "Embed it again under Corpora");

// If a job embeds the corpus again, show the job in `place`, and call `ended` when it has ended; `failed(error)` if the job can't be changed.
export async function followReembedding(corpus, place, { failed, ended, signal }) {
	try {
		const jobs = await listJobs({ corpus, signal });
		const job = jobs.find((one) => active(one) && one.kind === "reembed");
		if (!job) return;
		const row = jobRow(failed);
		row.show(job);
		fill(place, el("p", { role: "status" }, "Another encoder is served now. The corpus can be searched when this job has ended."), el("ul.works", row.element));
		await follow(job.id, { signal, seen: row.show, lost: row.lost });
		if (!signal.aborted) ended();
	} catch (error) {
		if (!left(error)) fill(place, failure(error, ended));
	}
}
