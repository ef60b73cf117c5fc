// S, kappa and the budget: changed while the run is running, after a preview.
import { html, useMemo, useState } from "/web/vendor/htm-preact.js";
import { post, useGet } from "/web/api.js";
import { count, known, usd } from "/web/format.js";
import { Button, Field, Problem, toast } from "/web/parts.js";
import { Preview, usePreview } from "./preview.js";
import { askToSignIn, useMay } from "./session.js";

const FIELDS = [
  { key: "staleness_limit", label: "S, the staleness limit", suffix: "learner steps", step: 1, hint: "Maximum age of a rollout that is trained on. A larger S lets slower workers contribute; a smaller S keeps training closer to on-policy. A raised S takes effect step by step, because the learner keeps older versions from then on." },
  { key: "publish_every_steps", label: "κ, steps between versions", suffix: "learner steps", step: 1, auto: true, hint: "A larger κ saves network traffic, but rollouts are older. With auto, versions are published as often as broadcasts allow." },
  { key: "usd_per_hour_max", label: "Budget per hour", suffix: "$/h", step: "any", optional: true, hint: "Limit on the cost of all workers that are on. Leave empty for no limit." },
  { key: "usd_total_max", label: "Total budget", suffix: "$", step: "any", optional: true, hint: "No more workers are switched on once it is spent. Leave empty for no limit." },
];

const AUTO = "auto";
const asText = ({ value, auto }) => (auto ? AUTO : known(value) ? String(value) : "");

/** The problem with a text, or "". */
export function wrongWith(text, { least, most }, { step, optional, auto }) {
  if (auto && text.trim() === AUTO) return "";
  if (text.trim() === "") return optional ? "" : "Enter a number.";
  const value = Number(text);
  if (!Number.isFinite(value) || (step === 1 && !Number.isInteger(value))) return step === 1 ? "Enter a whole number." : "Enter a number.";
  if (known(least) && value < least) return `At least ${least}.`;
  if (known(most) && value > most) return `At most ${most}.`;
  return "";
}

/** {key: number, null or "auto"} of the fields whose text differs from the value in force. */
export function changesOf(texts, settings) {
  const changes = {};
  for (const { key } of FIELDS) {
    if (!settings[key] || texts[key] === undefined || texts[key].trim() === asText(settings[key])) continue;
    const text = texts[key].trim();
    changes[key] = text === "" ? null : text === AUTO ? AUTO : Number(text);
  }
  return changes;
}

export function SettingsForm({ onApplied }) {
  const { data, error, reload } = useGet("/api/v1/settings");
  const canAct = useMay("operator");
  const [texts, setTexts] = useState({});
  const [state, setState] = useState({ busy: false, error: null });
  const fields = data ? FIELDS.filter(({ key }) => data[key]) : [];
  const wrong = Object.fromEntries(fields.map((field) => [field.key, texts[field.key] === undefined ? "" : wrongWith(texts[field.key], data[field.key], field)]));
  const changes = useMemo(() => (data ? changesOf(texts, data) : {}), [texts, data]);
  const isChanged = Object.keys(changes).length > 0, isWrong = Object.values(wrong).some(Boolean);
  const preview = usePreview(isChanged && !isWrong && canAct ? changes : null);
  const apply = async () => {
    if (!canAct) return askToSignIn("Changing settings requires an operator's token.");
    setState({ busy: true, error: null });
    try {
      await post("/api/v1/acts/settings", changes);
      setState({ busy: false, error: null });
      toast(`Applied: ${Object.entries(changes).map(([key, value]) => `${nameOf(key)} is ${written(key, value)}`).join(", ")}`, { tone: "good" });
      await reload();
      setTexts((now) => Object.fromEntries(Object.entries(now).filter(([key, text]) => text !== texts[key]))); // keep what was typed meanwhile
      onApplied?.();
    } catch (caught) {
      setState({ busy: false, error: caught });
    }
  };
  if (!data) return error ? html`<${Problem} error=${error} retry=${reload} />` : html`<p class="muted">Reading the settings…</p>`;
  return html`<form class="settings-form" onSubmit=${(event) => { event.preventDefault(); if (isChanged && !isWrong) apply(); }}>
    <div class="settings-fields">${fields.map((field) => html`<${Setting} key=${field.key} field=${field} setting=${data[field.key]} text=${texts[field.key]} error=${wrong[field.key]} onInput=${(text) => setTexts({ ...texts, [field.key]: text })} />`)}</div>
    <div class="settings-preview">
      ${isChanged && !isWrong && canAct ? html`<${Preview} ...${preview} />` : html`<p class="muted settings-hint">${isChanged && !canAct ? "Sign in with an operator's token to see a preview." : "Change a value to see a preview here. Nothing changes until you apply it."}</p>`}
      <${Problem} error=${state.error} />
      <div class="settings-buttons"><${Button} disabled=${!isChanged} onClick=${() => setTexts({})}>Undo<//><${Button} type="submit" kind="primary" busy=${state.busy} disabled=${!isChanged || isWrong}>Apply to the run<//></div>
    </div>
  </form>`;
}

const nameOf = (key) => ({ staleness_limit: "S", publish_every_steps: "κ", usd_per_hour_max: "the budget per hour", usd_total_max: "the budget" }[key]);
const written = (key, value) => (value === null ? "without limit" : value === AUTO ? AUTO : key.startsWith("usd") ? usd(value) : String(value));

function Setting({ field, setting, text, error, onInput }) {
  const { least, most, configured, auto } = setting;
  const bounds = [known(least) && field.step === 1 && `${count(least)} to ${known(most) ? count(most) : "any"}`, known(configured) && configured !== setting.value && `configured: ${configured}`,
    auto && `now ${setting.value}`].filter(Boolean).join("; ");
  return html`<${Field} label=${field.label} hint=${[field.hint, bounds && `(${bounds})`].filter(Boolean).join(" ")} error=${error} suffix=${field.suffix} inputmode=${field.auto ? "text" : field.step === 1 ? "numeric" : "decimal"}
    autocomplete="off" value=${text ?? asText(setting)} onInput=${onInput} />`;
}
