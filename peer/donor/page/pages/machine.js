// This machine's identity, its readings, and what sharing it with a run means.
import { html } from "/web/vendor/htm-preact.js";
import { useGet } from "/web/api.js";
import { bytes, duration, known, percent } from "/web/format.js";
import { Card, CopyButton, PageHead, Problem } from "/web/parts.js";

const COMMANDS = [
  ["rollcast peer status --watch", "show the first page of this site in a terminal"],
  ["rollcast peer check", "measure this machine and check whether it is fit for the run"],
  ["rollcast peer pause --for 2h", "pause at once; see also resume and finish"],
  ["rollcast peer limits set …", "limit what this machine is used for"],
  ["rollcast peer logs -f", "show the whole log"],
  ["rollcast peer id backup FILE", "back up the key that identifies this machine"],
  ["rollcast peer leave", "leave the run and remove the service"],
];

const readingsOf = (readings) => [
  ["Processor", known(readings.cpu_celsius) && `${Math.round(readings.cpu_celsius)} °C`],
  ["Accelerator", known(readings.gpu_celsius) && `${Math.round(readings.gpu_celsius)} °C`],
  ["Power of accelerators", known(readings.power_watts) && `${Math.round(readings.power_watts)} W`],
  ["Battery", known(readings.battery_share) && `${percent(readings.battery_share)}${readings.on_battery ? ", in use" : ", plugged in"}`],
  ["Last used", known(readings.idle_s) && `${duration(readings.idle_s)} ago`],
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
      <${Fact} name="Public name">${data.public_name || html`<span class="muted">none, so that you are anonymous (<code>public_name</code> in the configuration)</span>`}<//>
      <${Fact} name="Key"><code class="break">${data.key_file}</code> <span class="muted">This file is the machine's identity: keep a backup of it like a password. This page never sends it.</span><//>
      <${Fact} name="This copy"><code class="break">${data.instance_id}</code> <span class="muted">Created on this machine. A copied state folder gets another id, and the run notices if both are used at once.</span><//>
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
      <${Card} title="Readings" note="measured on this machine"><dl class="facts tall readings">${readings.map(([name, value]) => html`<${Fact} key=${name} name=${name}>${value}<//>`)}</dl><//>
    </div>
    <div class="pair">
      <${Card} title="What runs here"><ul class="plain">
        <li>A language model generates text for prompts that the run's coordinator sends. The results go back to it.</li>
        <li>The model's weights arrive in chunks and are relayed to other machines. Each chunk is checked against a list that only the learner's key can sign.</li>
        <li>The run cannot execute code on this machine: messages are plain data and are never executed.</li>
        <li>This machine sends the texts that it generates and their probabilities, the parts of the model that it relays, its public key, name, hardware, release, region, network addresses and kind of router, and each second its state with the reason, speed, traffic, versions and links; it sends no files, and nothing else.</li>
      </ul><//>
      <${Card} title="In a terminal"><dl class="commands">${COMMANDS.map(([command, what]) => html`<div key=${command}><dt><code>${command}</code></dt><dd>${what}</dd></div>`)}</dl><//>
    </div>
  </div>`;
}
