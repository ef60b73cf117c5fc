// Who this machine is, what it told about itself, and what giving its time means.
import { html } from "/web/vendor/htm-preact.js";
import { useGet } from "/web/api.js";
import { bytes, duration, known, percent } from "/web/format.js";
import { Card, CopyButton, PageHead, Problem } from "/web/parts.js";

const COMMANDS = [
  ["rollcast peer status --watch", "this page's first part, on a terminal"],
  ["rollcast peer check", "measure this machine, and what it is worth to the run"],
  ["rollcast peer pause --for 2h", "out of the way at once; also resume and finish"],
  ["rollcast peer limits set …", "what this machine may be used for"],
  ["rollcast peer logs -f", "all of the log"],
  ["rollcast peer id backup FILE", "keep the key that names this machine"],
  ["rollcast peer leave", "take this machine out of the run, its service too"],
];

const readingsOf = (readings) => [
  ["Processor", known(readings.cpu_celsius) && `${Math.round(readings.cpu_celsius)} °C`],
  ["Accelerator", known(readings.gpu_celsius) && `${Math.round(readings.gpu_celsius)} °C`],
  ["Power of accelerators", known(readings.power_watts) && `${Math.round(readings.power_watts)} W`],
  ["Battery", known(readings.battery_share) && `${percent(readings.battery_share)}${readings.on_battery ? ", in use" : ", plugged in"}`],
  ["Last touched", known(readings.idle_s) && `${duration(readings.idle_s)} ago`],
  ["Processor used by others", known(readings.others_cpu_share) && percent(readings.others_cpu_share)],
  ["Memory used by the peer", known(readings.memory_used_bytes) && bytes(readings.memory_used_bytes)],
  ["Memory free", known(readings.memory_free_bytes) && bytes(readings.memory_free_bytes)],
  ["Accelerator's memory used", known(readings.gpu_memory_used_bytes) && bytes(readings.gpu_memory_used_bytes)],
  ["Disk free", known(readings.disk_free_bytes) && bytes(readings.disk_free_bytes)],
];

const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

function Identity() {
  const { data, error, reload } = useGet("/api/v1/identity");
  if (error) return html`<${Problem} error=${error} retry=${reload} />`;
  if (!data) return html`<div class="loading" aria-busy="true"></div>`;
  return html`<${Card} title="Identity" actions=${html`<${CopyButton} text=${data.peer_id}>Copy the id<//>`}>
    <dl class="facts tall">
      <${Fact} name="Id"><code class="break">${data.peer_id}</code><//>
      <${Fact} name="Name in the run">${data.name}<//>
      <${Fact} name="Public name">${data.public_name || html`<span class="muted">none: the world sees nothing of you (<code>public_name</code> in the configuration)</span>`}<//>
      <${Fact} name="Key"><code class="break">${data.key_file}</code> <span class="muted">Whoever has this file is this machine: keep a backup like a password. It never leaves through this page.</span><//>
      <${Fact} name="This copy"><code class="break">${data.instance_id}</code> <span class="muted">Made here. A copied state folder gets another one, and two at once are noticed.</span><//>
      <${Fact} name="Software">${data.software}<//>
    </dl>
  <//>`;
}

export function Machine({ report }) {
  const readings = readingsOf(report.readings).filter(([, value]) => value);
  return html`<div class="stack">
    <${PageHead} title="This machine" note=${report.hardware} />
    <div class="pair">
      <${Identity} />
      <${Card} title="Readings" note="what this machine tells about itself"><dl class="facts tall readings">${readings.map(([name, value]) => html`<${Fact} key=${name} name=${name}>${value}<//>`)}</dl><//>
    </div>
    <div class="pair">
      <${Card} title="What runs here"><ul class="plain">
        <li>A language model draws text for prompts that the run's coordinator sends. The results go back to it.</li>
        <li>Weights come in chunks, each checked against a list that only the learner's key can sign, and go on to other machines in the same way.</li>
        <li>Nobody can run code here: messages are plain data, and nothing of them is executed.</li>
        <li>What leaves this machine: rollouts, chunks, and heartbeats with state, speed, versions, links and the hardware's name. No files, no addresses of other programs, nothing about you.</li>
      </ul><//>
      <${Card} title="On a terminal"><dl class="commands">${COMMANDS.map(([command, what]) => html`<div key=${command}><dt><code>${command}</code></dt><dd>${what}</dd></div>`)}</dl><//>
    </div>
  </div>`;
}
