// Areas of a map: points that are close together, and the words that distinguish them from the others.

const MOST = 8; // areas; there are as many colours
const LEAST = 15; // points of an area, on average
const ROUNDS = 25; // of k-means
const ENOUGH = 5000; // points from which areas are computed; other points join the nearest area
const WORDS = 3;
const FEW = 3; // passages that must contain a word
const OFTENER = 1.5; // minimum ratio of a word's frequency in the area to that everywhere
const SHORT = 3; // minimum letters of a useful word
const WORD = /[\p{L}\p{N}]+/gu;
const UNSPACED = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmr}\p{sc=Mymr}]/u; // scripts without spaces
const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });

// Return the areas { x, y, name, members } of points { x, y, text }, largest first. Few points have no areas. Equal points always get equal areas.
export function areas(all) {
	const step = Math.ceil(all.length / ENOUGH);
	const points = all.filter((_, i) => i % step === 0);
	const k = Math.min(MOST, Math.floor(points.length / LEAST));
	if (k < 2) return [];
	const clusters = clustered(points, k).sort((one, other) => other.members.length - one.members.length);
	if (clusters.length < 2) return [];
	const names = distinguished(clusters.map(({ members }) => members.map((i) => words(points[i].text))));
	const found = clusters.map(({ x, y }, i) => ({ x, y, name: names[i].join(", "), members: [] }));
	all.forEach((point, i) => found[nearest(point, found)].members.push(i));
	return found;
}

// k-means by Lloyd's algorithm, with the starts of k-means++.
function clustered(points, k) {
	let middles = starts(points, k);
	let clusters = [];
	for (let round = 0; round < ROUNDS; round++) {
		clusters = middles.map((middle) => ({ ...middle, members: [] }));
		points.forEach((point, i) => clusters[nearest(point, middles)].members.push(i));
		clusters = clusters.filter(({ members }) => members.length);
		middles = clusters.map(({ members }) => ({ x: mean(members, ({ x }) => x), y: mean(members, ({ y }) => y) }));
	}
	return clusters;

	function mean(members, of) {
		return members.reduce((sum, i) => sum + of(points[i]), 0) / members.length;
	}
}

// Draw each next start with a probability proportional to its squared distance from the previous starts.
function starts(points, k) {
	let seed = 1;
	const random = () => (seed = (16807 * seed) % 2147483647) / 2147483647; // Park and Miller, with a fixed seed: all visits get the same areas
	const found = [points[Math.floor(random() * points.length)]];
	const far = points.map((point) => distance(point, found[0]));
	while (found.length < k) {
		let left = random() * far.reduce((sum, one) => sum + one, 0);
		const next = points[far.findIndex((one) => (left -= one) < 0)];
		if (!next) break; // all other points equal a start
		found.push(next);
		points.forEach((point, i) => (far[i] = Math.min(far[i], distance(point, next))));
	}
	return found.map(({ x, y }) => ({ x, y }));
}

const distance = (one, other) => (one.x - other.x) ** 2 + (one.y - other.y) ** 2;

function nearest(point, middles) {
	let [found, least] = [0, Infinity];
	for (let i = 0; i < middles.length; i++) {
		const far = distance(point, middles[i]);
		if (far < least) [found, least] = [i, far];
	}
	return found;
}

function words(text) {
	const lower = text.toLowerCase();
	const parts = UNSPACED.test(lower) ? Array.from(segmenter.segment(lower), ({ segment }) => segment) : (lower.match(WORD) ?? []);
	return new Set(parts.filter((word) => UNSPACED.test(word) || (word.length >= SHORT && /^\p{L}/u.test(word))));
}

// The words of each area that most distinguish it: square root of the share of its passages with the word, times the logarithm of
// how much greater this share is than that of all passages. A word that all areas have counts nothing, so there are no stop words.
function distinguished(texts) {
	const inside = texts.map(frequencies);
	const everywhere = frequencies(texts.flat());
	const all = texts.flat().length;
	return inside.map((found, i) => {
		const oftener = ([word, many]) => (many * all) / (texts[i].length * everywhere.get(word));
		const gain = (entry) => Math.sqrt(entry[1] / texts[i].length) * Math.log(oftener(entry));
		const telling = [...found].filter((entry) => entry[1] >= FEW && oftener(entry) > OFTENER);
		return telling.sort((one, other) => gain(other) - gain(one)).slice(0, WORDS).map(([word]) => word);
	});
}

function frequencies(texts) {
	const found = new Map();
	for (const text of texts) for (const word of text) found.set(word, (found.get(word) ?? 0) + 1);
	return found;
}
