// View of the corpora: add files, follow jobs, and manage corpora.

import { comparison } from "../adapting.js";
import { adding } from "../adding.js";
import { ApiError, call } from "../api.js";
import { corpora as listCorpora, named } from "../chooser.js";
import { button, div, filePicker, rowsOf } from "../controls.js";
import { corpusCard } from "../corpus.js";
import { el, fill } from "../dom.js";
import { bytes } from "../format.js";
import { active, follow, jobRow, listJobs } from "../jobs.js";
import { like } from "../names.js";
import { askWhere } from "../snapshots.js";
import { tryIt } from "../snippets.js";
import { failure, left, loading } from "../states.js";
import { Upload, changes, uploadRow, uploads } from "../uploads.js";

const FOLLOWED = 3; // followed jobs at a time
const ENDED = 3; // ended jobs that are shown at first
const BUILDING_MS = 3000;
const RENEWED_MS = 2000; // minimum time between two updates of the corpora while a job runs

export async function show(place, state) {
	const { address, signal } = state;
	const [said, earlier, none] = [el("div"), el("div"), el("p.muted", { hidden: true }, "There is no corpus yet. The first file creates one.")];
	const [sending, work, list] = [0, 1, 2].map(() => el("ul.works"));
	const tried = tryIt();
	const shown = { corpora: [], models: [], jobs: new Map(), all: false, renewed: 0 };
	const uploading = rowsOf(sending, (upload) => upload, uploadRow);
	const jobs = rowsOf(work, ({ id }) => id, () => jobRow(failed, outcome));
	const cards = rowsOf(list, ({ name }) => name, card);
	const following = new Set();
	const beginning = new Set(); // paths of requests for jobs that are not answered yet
	fill(place, loading());
	shown.models = await encoders(signal);
	const form = adding({
		known: async () => ({ corpora: await named(signal), models: shown.models.map(({ name }) => name) }),
		signal,
		started: start,
	});
	changes.addEventListener("change", onUpload, { signal });
	uploading.show(uploads());
	await refresh();
	fill(
		place,
		form.element,
		said,
		sending,
		work,
		earlier,
		div("heading", el("h2", "Stored corpora"), filePicker("Restore from a snapshot file", ".zst,.tar.zst", restoreFile)),
		none,
		list,
		tried.element,
	);

	function start(upload) {
		if (!upload.form) tried.show({ method: upload.method, path: upload.path, type: upload.media, body: { file: upload.file.name } });
		upload.start();
		sending.scrollIntoView({ block: "nearest" });
	}

	// Send a request that starts a job, unless the user pressed twice.
	async function begin(request) {
		if (beginning.has(request.path)) return;
		beginning.add(request.path);
		fill(said);
		tried.show(request);
		try {
			seen(await call(request.path, { ...request, signal }));
		} catch (error) {
			if (error.answer?.job) return refresh();
			failed(error, () => begin(request));
			if (error.status === 404) refresh(); // another client deleted the corpus
		} finally {
			beginning.delete(request.path);
		}
		followSome();
	}

	function outcome(job) {
		return job.kind === "adapt" && comparison(job, { begin, failed });
	}

	// again() repeats the user's request after a failure.
	function failed(error, again) {
		if (left(error)) return;
		fill(said, failure(error, () => (fill(said), (again ?? refresh)())));
		if (again) said.scrollIntoView({ block: "nearest" });
	}

	async function refresh() {
		const began = (shown.renewed = performance.now());
		try {
			const [listed, submitted] = await Promise.all([listCorpora(signal), listJobs({ latest: shown.jobs.size > 0, signal })]);
			if (listed.some(isNews)) shown.models = await encoders(signal);
			if (began < shown.began) return; // a later answer has arrived earlier
			shown.began = began;
			shown.corpora = listed;
			submitted.forEach((job) => shown.jobs.set(job.id, job));
			drawCards();
			drawJobs();
			followSome();
		} catch (error) {
			failed(error);
		}
	}

	// True for a corpus of an encoder that the server has loaded since the view was opened.
	function isNews({ state, fingerprint }) {
		return state === "ready" && fingerprint && !shown.models.some((one) => one.fingerprint === fingerprint);
	}

	function seen(job) {
		shown.jobs.set(job.id, job);
		drawJobs();
	}

	function followSome() {
		const waiting = [...shown.jobs.values()].filter((job) => active(job) && !following.has(job.id)).sort((a, b) => a.created - b.created);
		waiting.slice(0, FOLLOWED - following.size).forEach(followOne);
	}

	async function followOne({ id }) {
		following.add(id);
		try {
			await follow(id, {
				signal,
				seen: (job) => {
					shown.jobs.set(id, job);
					jobs.get(id)?.show(job);
					if (performance.now() - shown.renewed > RENEWED_MS) refresh();
				},
				lost: (error) => jobs.get(id)?.lost(error),
			});
		} catch (error) {
			if (!(error instanceof ApiError)) throw error;
			shown.jobs.delete(id);
			failed(error);
		}
		following.delete(id);
		if (signal.aborted) return;
		await refresh();
		cards.all().forEach((one) => one.reload());
	}

	function drawJobs() {
		const all = [...shown.jobs.values()].sort((a, b) => active(b) - active(a) || b.created - a.created);
		const some = shown.all ? all : all.filter((job, i) => active(job) || i < ENDED);
		jobs.show(some);
		const more = all.length - some.length;
		fill(earlier, more > 0 && button(`Show ${more} earlier`, () => ((shown.all = true), drawJobs()), { class: "quiet" }));
	}

	function onUpload({ detail: job }) {
		uploading.show(uploads());
		if (job === null) return;
		if (job) {
			seen(job);
			followSome();
		}
		refresh(); // also after a failure, because the corpus is created before the file is sent
	}

	function drawCards() {
		none.hidden = shown.corpora.length > 0;
		cards.show(shown.corpora);
		clearTimeout(shown.timer);
		const building = shown.corpora.some(({ index_details: index }) => index?.state === "building");
		if (building) shown.timer = setTimeout(() => signal.aborted || refresh(), BUILDING_MS);
	}

	function card({ name, vectors }) {
		return corpusCard(name, {
			own: vectors === "own",
			models: () => shown.models,
			reembedded: () => [...shown.jobs.values()].some((job) => active(job) && job.kind === "reembed" && job.corpus === name),
			where,
			begin,
			add: () => form.into(name),
			drop: () => drop(name),
			opened: (open) => (open ? state.keep({ corpus: name }) : address.get("corpus") === name && state.keep({ corpus: null })),
			signal,
			open: address.get("corpus") === name,
		});
	}

	async function drop(name) {
		fill(said);
		const request = { method: "DELETE", path: `corpora/${name}` };
		try {
			await call(request.path, { ...request, signal });
		} catch (error) {
			if (error.status !== 404) return failed(error, () => drop(name)); // it was deleted elsewhere
		}
		tried.show(request);
		if (address.get("corpus") === name) state.keep({ corpus: null });
		refresh();
	}

	// Names of corpora that uploads and jobs will create are also taken.
	async function where(asked) {
		const taken = [...uploads(), ...[...shown.jobs.values()].filter(active)].map(({ corpus }) => corpus);
		try {
			return await askWhere({ ...asked, known: () => named(signal), taken });
		} catch (error) {
			failed(error);
		}
	}

	async function restoreFile(file) {
		const text = `${file.name}, ${bytes(file.size)}.`;
		const name = like(file.name.replace(/-\d{8}T\d{6}Z-[\da-f]{8}.*$|(\.tar)?\.zst$/i, ""));
		const into = await where({ title: "Restore from a file", text, name });
		if (!into) return;
		const path = `corpora/${into}/restore`;
		start(new Upload({ corpus: into, file, media: "application/zstd", method: "PUT", path }));
	}
}

// The served encoders. A cross-encoder can't embed documents.
async function encoders(signal) {
	const { data } = await call("v1/models", { signal });
	const infos = await Promise.all(data.map(({ id }) => call(`info?${new URLSearchParams({ model: id })}`, { signal })));
	return infos.filter(({ model_type: type }) => type.embedding).map(({ served_model_name: name, fingerprint }) => ({ name, fingerprint }));
}
