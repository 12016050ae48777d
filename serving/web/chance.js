// The cosine that unrelated sentences can reach by chance.

import { call } from "./api.js";
import { served } from "./app.js";
import { left } from "./states.js";

const DEVIATIONS = 4; // standard deviations above the mean, which about one of ten thousand unrelated sentences exceeds
const UNRELATED = [
	"The ferry to the island leaves at seven in the morning.",
	"Her grandmother taught her to knit during the winter.",
	"The court postponed the hearing until next month.",
	"Salt lowers the temperature at which water freezes.",
	"Two goals in extra time decided the final.",
	"The museum bought a painting by an unknown artist.",
	"Prices of wheat fell after a good harvest.",
	"A cracked tooth should be seen by a dentist soon.",
	"The orchestra tunes to the note of the oboe.",
	"Bees find their way home by the position of the sun.",
	"The printer needs a new cartridge of black ink.",
	"He signed the contract without reading the last page.",
	"The glacier has lost half of its ice in a century.",
	"Children under six travel free of charge on the tram.",
	"The general retreated across the river at night.",
	"Add the onions when the butter begins to brown.",
];

const known = new Map(); // what was measured, by the fingerprint of the encoder

// Return the cosine above which a hit of `corpus` is not chance. Return null if it is not available, or if the vectors come from
// another encoder than the default one.
export async function chance({ fingerprint }, signal) {
	if (served.fingerprint !== fingerprint) return null;
	try {
		if (!known.has(fingerprint)) known.set(fingerprint, await measured(signal));
		return known.get(fingerprint);
	} catch (error) {
		if (left(error)) throw error;
		return null;
	}
}

async function measured(signal) {
	const inputs = { sentences_a: UNRELATED, sentences_b: UNRELATED };
	const matrix = await call("similarity", { body: { inputs }, signal });
	const cosines = matrix.flatMap((line, i) => line.slice(i + 1));
	const mean = cosines.reduce((sum, cosine) => sum + cosine, 0) / cosines.length;
	const variance = cosines.reduce((sum, cosine) => sum + (cosine - mean) ** 2, 0) / cosines.length;
	return mean + DEVIATIONS * Math.sqrt(variance);
}
