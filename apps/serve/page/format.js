// Figures and names as people read them.

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/** Bytes, in powers of 1000 as everywhere in the program. */
export function size(bytes) {
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${UNITS[unit]}`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

/** A moment in ISO 8601 as a day. */
export function day(moment) {
  const date = new Date(moment);
  return Number.isNaN(date.getTime())
    ? ""
    : date.toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export function moment(text) {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? text || "" : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** Characters that change the reading order, are not seen or break a line, as in `edge/control_characters.py`. A name with
 * them can look like another name. */
const STEERING =
  /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\u{e0000}-\u{e007f}]/gu;
const SHORT = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

/** A name or a path with an escape such as `\u202e` in the place of each such character. */
export function shown(name) {
  const unit = (code) => `\\u${code.toString(16).padStart(4, "0")}`;
  return name.replace(STEERING, (char) => SHORT[char] || Array.from({ length: char.length }, (_, at) => unit(char.charCodeAt(at))).join(""));
}

/** The last part of a path. */
export function fileName(path) {
  return shown(path.split(/[/\\]/).filter(Boolean).pop() || path);
}

/** A mail, an event or a day of a chat in a line: its sender, recipients, date and subject, as far as it has them. */
export function mailLine(mail) {
  const people = [mail.sender, mail.recipients].filter(Boolean).join(" to ");
  const about = [people, mail.sent.slice(0, 16).replace("T", " ")].filter(Boolean).join(", ");
  return shown([about, mail.subject].filter(Boolean).join(": "));
}

/** The folders of a path, the last ones where they are many. */
export function folder(path) {
  const parts = path.split(/[/\\]/).filter(Boolean).slice(0, -1);
  return (parts.length > 3 ? "… / " : "") + parts.slice(-3).map(shown).join(" / ");
}
