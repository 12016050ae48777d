// Uploads to the server. They continue while the user visits other views.

import { ApiError, call, upload } from "./api.js";
import { button, div } from "./controls.js";
import { el, fill } from "./dom.js";
import { bytes, duration } from "./format.js";
import { left } from "./states.js";

const under = new Set();

export const changes = new EventTarget(); // "change": of any of them; its detail is the job that came of it, or false if the server refused it or the user stopped it

export const uploads = () => [...under];

// An upload with its file, its destination and its progress.
export class Upload {
	constructor({ corpus, file, media, form = false, query, model, method = "POST", path }) {
		Object.assign(this, { corpus, file, media, form, model, method });
		this.path = path ?? `corpora/${corpus}/documents?${new URLSearchParams({ async: true, ...query })}`;
		this.once = crypto.getRandomValues(new Uint32Array(4)).join("-");
	}

	// After an error, the same request is sent again, so the server stores nothing twice.
	async start() {
		Object.assign(this, { sent: 0, total: this.file.size, error: null, began: performance.now(), leaving: new AbortController() });
		under.add(this);
		told();
		try {
			const job = await this.#sent();
			under.delete(this);
			told(job);
		} catch (error) {
			if (left(error)) under.delete(this);
			else this.error = error;
			told(error.status === 0 ? null : false);
		}
	}

	stop() {
		this.leaving.abort();
		under.delete(this);
		told();
	}

	get rate() {
		return this.sent / Math.max(0.001, (performance.now() - this.began) / 1000); // bytes a second
	}

	// The name of the file tells the server the format, also for text that looks like JSON.
	#form() {
		const body = new FormData();
		body.append("file", new File([this.file], this.form === "named" ? this.file.name : "texts.txt", { type: this.media }));
		return body;
	}

	async #sent() {
		const { signal } = this.leaving;
		await this.file.slice(0, 1).arrayBuffer().catch(() => {
			throw new ApiError(0, `${this.file.name} was changed after it was chosen, or is gone. Dismiss this, and choose the file again.`);
		});
		const headers = this.form ? {} : { "content-type": this.media };
		if (this.method === "POST") {
			headers["idempotency-key"] = this.once;
			const body = this.model ? { model: this.model } : {};
			await call(`corpora/${this.corpus}`, { method: "PUT", body, signal });
		}
		try {
			const progress = (sent, total) => {
				Object.assign(this, { sent, total });
				told();
			};
			return await upload(this.path, this.form ? this.#form() : this.file, { method: this.method, headers, signal, progress });
		} catch (error) {
			if (!error.answer?.job) throw error;
			return await call(`jobs/${error.answer.job}`, { signal }); // an equal job is already queued or running
		}
	}
}

// The row of an upload in the list.
export function uploadRow(upload) {
	const [bar, line, actions] = [el("progress", { "aria-label": `Sending ${upload.file.name}` }), el("p"), div("actions")];
	const element = el(
		"li.card.work",
		el("p", "Sending ", el("strong.clip", upload.file.name), " to ", el("strong.clip", upload.corpus)),
		bar,
		div("heading", line, actions),
	);
	let failedBefore = null;

	function show() {
		const { sent, total, rate, error } = upload;
		bar.hidden = Boolean(error);
		if (sent < total) Object.assign(bar, { max: total, value: sent });
		else bar.removeAttribute("value");
		line.className = error ? "wrong" : "muted";
		line.setAttribute("role", error ? "alert" : "none");
		const pace = sent ? ` · ${bytes(rate)}/s · ${duration((total - sent) / rate)} left` : "";
		const far = sent < total ? `${bytes(sent)} of ${bytes(total)}${pace}` : `All ${bytes(total)} sent; the server is storing it.`;
		line.textContent = error ? error.message : far;
		if (failedBefore === Boolean(error)) return;
		failedBefore = Boolean(error);
		fill(
			actions,
			error && button("Try again", () => upload.start(), { class: "primary" }),
			button(error ? "Dismiss" : "Cancel", () => upload.stop()),
		);
	}

	return { element, show };
}

function told(job) {
	changes.dispatchEvent(new CustomEvent("change", { detail: job }));
}

window.addEventListener("beforeunload", (event) => {
	if (uploads().some(({ error }) => !error)) event.preventDefault();
});
