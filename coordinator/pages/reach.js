// Reachability: members that can be dialed, the paths of links, and hole punches.
import { html } from "/web/vendor/htm-preact.js";
import { count, duration, known, plural } from "/web/format.js";
import { Card, Shares } from "/web/parts.js";

const MEMBERS = { dialable: "series-1", "hole-punchable": "series-2", "only outwards": "series-3" };
const PATHS = { LAN: "series-5", direct: "series-1", "hole-punched": "series-2", libp2p: "series-4", relayed: "series-3", mirror: "series-6" };

export function Reach({ reach }) {
  if (!reach) return null;
  const members = sharesOf(reach.members, MEMBERS), ends = sharesOf(reach.link_ends, PATHS);
  const open = Object.values(reach.link_ends).some((many) => many > 0);
  return html`<${Card} title="How members reach each other" note=${told(reach)}>
    <div class="reach-parts">
      <div><h3>Members</h3><${Shares} label="Members by how others reach them" parts=${members} /></div>
      <div><h3>Ends of open links</h3>${open ? html`<${Shares} label="Ends of open links by path" parts=${ends} />` : html`<p class="muted">No links are open.</p>`}</div>
    </div>
  <//>`;
}

/** Counts of zero get no line, except among members, where a zero is informative. */
function sharesOf(counts, colours) {
  return Object.entries(counts).filter(([name, many]) => many > 0 || colours === MEMBERS)
    .map(([name, many]) => ({ label: name, value: many, colour: colours[name] || "series-6", text: count(many) }));
}

function told({ punches }) {
  const parts = [];
  if (punches.asked) parts.push(`${plural(punches.opened, "hole")} punched of ${count(punches.asked)}${known(punches.seconds_mean) ? `, in ${duration(punches.seconds_mean)} on average` : ""}`);
  if (punches.pairs_left_alone) parts.push(`${plural(punches.pairs_left_alone, "pair")} paused after a failure`);
  return parts.join("; ");
}
