// What of a reply was heard, by the rule by which the llm remembers it (dora_voice/heard.py): whole words.

// Chinese and Japanese write no spaces: each of these stands for itself.
const ALONE = /[\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}]/u;
const IN_A_WORD = /[\p{L}\p{N}\p{M}_'’]/u;
const BELONGS_TO_THE_ONE_BEFORE = /[\p{M}\u200d\ufe0f\u{1f3fb}-\u{1f3ff}]/u;
const IN_A_NUMBER = /^\d[.,:]\d$/;

/** In two, at the code point `end` or a little before: a word, a number or a character isn't torn. */
export function partsOf(text, end) {
  const characters = [...text];
  if (end >= characters.length) return [text, ""];
  while (end > 0 && tears(characters, end)) end -= 1;
  const said = characters.slice(0, end).join("").trimEnd();
  return [said, text.slice(said.length)];
}

function tears(characters, at) {
  const [before, after] = [characters[at - 1], characters[at]];
  if (BELONGS_TO_THE_ONE_BEFORE.test(after) || before === "\u200d") return true;
  if (isInAWord(before) && isInAWord(after)) return true;
  return [at - 2, at - 1].some((start) => start >= 0 && IN_A_NUMBER.test(characters.slice(start, start + 3).join("")));
}

function isInAWord(character) {
  return IN_A_WORD.test(character) && !ALONE.test(character);
}
