// Limits on what this machine is used for and when; they can be changed while it runs.
import { html, useState } from "/web/vendor/htm-preact.js";
import { post, useGet } from "/web/api.js";
import { bytes, fixed } from "/web/format.js";
import { Badge, Button, Card, Field, Meter, PageHead, Problem, toast } from "/web/parts.js";
import { Week } from "./week.js";

const GROUPS = [
  ["Network", [["upload_mbit_s_max", "Upload at most", "Mbit/s"], ["download_mbit_s_max", "Download at most", "Mbit/s"], ["upload_gb_month", "Upload a month", "GB"], ["download_gb_month", "Download a month", "GB"], ["quota_reset_day", "Quotas restart on day", "of the month"], ["lan_exempt", "Do not cap the local network"]]],
  ["Heat and power", [["cpu_celsius_max", "Processor at most", "°C"], ["gpu_celsius_max", "Accelerator at most", "°C"], ["power_watts_max", "Accelerator power at most", "W"], ["battery_share_min", "On battery, charge at least", "%"]]],
  ["Other use of this machine", [["idle_minutes_min", "Only when unused for", "minutes"], ["others_cpu_share_max", "Others may use the processor up to", "%"], ["memory_free_gib_min", "Leave memory free", "GiB"], ["vram_share_max", "Accelerator's memory at most", "%"], ["disk_free_gib_min", "Leave disk free", "GiB"], ["polite", "Lowest priority"]]],
];
/** Replace descriptions of the configuration that speak of shares from 0 to 1, or of the key before; "none" is an empty field here. */
const HINTS = { gpu_celsius_max: "Above this temperature of the accelerator work stops until it is 5 degrees cooler.", battery_share_min: "On battery, work stops below this charge. With 100 there is no work on battery at all.", others_cpu_share_max: "Work pauses while other programs use more of the processor than this.", vram_share_max: "Part of the accelerator's memory that the engine may use. Leave empty for the engine's own default." };
const HOURS = [["compute_hours", "Hours for computing", "series-1"], ["network_hours", "Hours for the network", "series-2"]];
const BYTES_PER_GB = 1e9;

const isShare = (key) => key.includes("_share_");

/** The value of a limit as its form shows it: shares in percent. */
function shownOf(key, value) {
  if (Array.isArray(value)) return value.join("\n");
  if (typeof value === "boolean") return value;
  if (value === null) return "";
  return String(isShare(key) ? Math.round(value * 1000) / 10 : value);
}

/** The limit's value from the form's text; undefined if it is not a number. */
function valueOf(key, shown) {
  if (typeof shown === "boolean") return shown;
  if (key.endsWith("_hours")) return shown.split(/\n|;/).map((line) => line.trim()).filter(Boolean);
  if (shown.trim() === "") return null;
  const number = Number(shown.replace(",", "."));
  if (!Number.isFinite(number)) return undefined;
  return isShare(key) ? number / 100 : number;
}

function Quota({ label, used, limitGb, resetDay }) {
  const share = limitGb ? used / (limitGb * BYTES_PER_GB) : 0;
  return html`<div class="quota"><p><span>${label}</span><span><b>${bytes(used)}</b>${limitGb ? ` of ${fixed(limitGb, 0)} GB` : ", no quota"}</span></p>
    ${limitGb && html`<${Meter} value=${share} label="${label}: share of this month's quota" tone=${share >= 1 ? "bad" : share > 0.85 ? "warn" : ""} />`}
    ${limitGb && html`<p class="muted small">The quota restarts on day ${resetDay} of the month. Traffic in your own network does not count.</p>`}</div>`;
}

function Entry({ name, label, suffix, shown, meaning, changed, wrong, onInput, onReset }) {
  const hint = html`${meaning}${changed && html` <${Badge} tone="accent">set here<//> <button type="button" class="link" onClick=${onReset}>use configured limit</button>`}`;
  if (typeof shown === "boolean") {
    return html`<div class="field"><label class="check"><input type="checkbox" checked=${shown} onChange=${(event) => onInput(event.target.checked)} /><span>${label}</span></label><p class="field-said">${hint}</p></div>`;
  }
  return html`<${Field} label=${label} suffix=${suffix} value=${shown} inputmode="decimal" placeholder=${name === "quota_reset_day" ? "" : "no limit"} onInput=${onInput} hint=${hint} error=${wrong ? "Enter a number, or nothing for no limit" : ""} autocomplete="off" />`;
}

export function Limits({ report }) {
  const { data, error, reload } = useGet("/api/v1/limits");
  const [edited, setEdited] = useState({});
  const [failed, setFailed] = useState(null), [busy, setBusy] = useState(false);
  if (error && !data) return html`<${Problem} error=${error} retry=${reload} />`;
  if (!data) return html`<div class="loading" aria-busy="true"></div>`;
  const { limits, meanings, changed, weeks, at_restart: atRestart } = data;
  const shown = (key) => edited[key] ?? shownOf(key, limits[key]);
  const wrong = Object.keys(edited).filter((key) => valueOf(key, edited[key]) === undefined);
  const differs = Object.keys(edited).filter((key) => edited[key] !== shownOf(key, limits[key]));
  const send = async (body, said) => {
    setBusy(true);
    setFailed(null);
    try {
      const answer = await post("/api/v1/acts", { do: "limits", ...body });
      setEdited({});
      await reload();
      toast(answer.at_restart.length ? `${said} Some apply from the next start.` : said, { tone: "good" });
    } catch (caught) {
      setFailed(caught);
    }
    setBusy(false);
  };
  const save = (event) => {
    event?.preventDefault();
    if (differs.length && !wrong.length) send({ set: Object.fromEntries(differs.map((key) => [key, valueOf(key, edited[key])])) }, "The limits are saved.");
  };
  const entry = ([key, label, suffix]) => html`<${Entry} key=${key} name=${key} label=${label} suffix=${suffix} shown=${shown(key)} meaning=${HINTS[key] || meanings[key].replace(/; none: [^.]*\./, ".")} changed=${changed.includes(key)} wrong=${wrong.includes(key)}
    onInput=${(value) => setEdited({ ...edited, [key]: value })} onReset=${() => send({ reset: [key] }, "The configured limit applies again.")} />`;
  return html`<form class="stack" onSubmit=${save}>
    <${PageHead} title="Limits" note="Leave a field empty for no limit. Changes apply at once and survive a restart." />
    <${Problem} error=${failed} />
    ${atRestart.length > 0 && html`<p class="notice"><span>These apply from the next start: ${atRestart.join(", ")}.</span></p>`}
    <div class="pair">${HOURS.map(([key, title, colour]) => html`<${Card} key=${key} title=${title} note=${limits[key].length ? "" : "always"}>
      <${Week} windows=${weeks[key]} label=${title} colour=${colour} />
      <${Field} label="Hours, one window per line" hint=${html`For example <code>mon-fri 22:00-07:00</code> or <code>sat,sun</code>, in local time. Leave empty for always. ${changed.includes(key) ? html`<button type="button" class="link" onClick=${() => send({ reset: [key] }, "The configured limit applies again.")}>use configured limit</button>` : ""}`}>
        ${({ id, describedBy }) => html`<textarea id=${id} class="input mono" rows="2" spellcheck="false" aria-describedby=${describedBy} value=${shown(key)} onInput=${(event) => setEdited({ ...edited, [key]: event.target.value })}></textarea>`}<//>
    <//>`)}</div>
    <${Card} title="This month"><div class="pair tight"><${Quota} label="Sent" used=${report.used.sent_bytes} limitGb=${limits.upload_gb_month} resetDay=${limits.quota_reset_day} /><${Quota} label="Received" used=${report.used.received_bytes} limitGb=${limits.download_gb_month} resetDay=${limits.quota_reset_day} /></div><//>
    <div class="groups">${GROUPS.map(([title, keys]) => html`<${Card} key=${title} title=${title}><div class="fields">${keys.map(entry)}</div><//>`)}</div>
    <div class="savebar ${differs.length ? "" : "quiet"}">
      <span class="muted" role="status">${differs.length ? `${differs.length} changed, not saved` : "No changes"}</span>
      <${Button} disabled=${!differs.length} onClick=${() => setEdited({})}>Undo<//>
      <${Button} kind="primary" type="submit" busy=${busy} disabled=${!differs.length || wrong.length > 0}>Save<//>
    </div>
  </form>`;
}
