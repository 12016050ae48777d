// Messages for a corpus that another encoder embedded. It can be searched after a job has embedded it again.

import { link } from "./app.js";
import { el } from "./dom.js";
import { followWork } from "./jobs.js";

const SAID = "Another encoder is served now. The corpus can be searched when this job has ended.";

// A link to start the job, if no job is running.
export const wayOut = (corpus) => el("a", { href: link("corpora", { corpus }) }, "Embed it again under Corpora");

export const followReembedding = (corpus, place, options) => followWork("reembed", corpus, place, { said: SAID, ...options });
