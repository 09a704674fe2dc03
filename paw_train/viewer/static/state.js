// The address holds everything that is shown: #/RUN/TAB?filters. Back, forward and links just work.

export const TABS = { training: ["curves", "groups", "episodes", "turns"], evaluation: ["result", "groups", "episodes", "turns"] };
const SEPARATOR = "//"; // between the names of several runs: no name holds it, for names are paths
export const FILTERS = ["q", "phase", "outcome", "env", "type", "invalid", "selected", "entropy", "u"];

export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decode);
  const params = Object.fromEntries(new URLSearchParams(query || ""));
  const tab = ["curves", "result", "groups", "episodes", "turns"].includes(parts[1]) ? parts[1] : null;
  return { run: parts[0] || null, tab, params };
}

export function format({ run, tab, params }) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {}))
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  const text = query.toString();
  const path = run ? `#/${encodeURIComponent(run)}${tab ? `/${tab}` : ""}` : "#/";
  return text ? `${path}?${text}` : path;
}

// Where a run begins: its first tab.
export const home = (run) => format({ run: run.name, tab: TABS[run.kind][0], params: {} });

export const current = () => parse(location.hash);

// Changes part of the address. Moving along a list replaces it, so that "back" leaves the list.
export function go(change, { replace = false } = {}) {
  const now = current();
  const next = { ...now, ...change, params: { ...now.params, ...(change.params || {}) } };
  const hash = format(next);
  if (hash === (location.hash || "#/")) return;
  if (replace) {
    history.replaceState(null, "", hash);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = hash;
}

// The runs that lie over one another, or null.
export const chosenRuns = (params) => (params.runs ? params.runs.split(SEPARATOR).filter(Boolean) : null);
export const runsParam = (names) => names.join(SEPARATOR);

export function range(params) {
  const found = /^(\d+)-(\d+)$/.exec(params.u || "");
  return found ? [Number(found[1]), Number(found[2])] : null;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
