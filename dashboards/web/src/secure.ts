// What a secure round was: in one line what the coordinator could see of it, and what it could not.
import type { ExchangeView, RoundView, SecureView } from "./api/types";
import { count } from "./format";

export type SecureRound = RoundView & { secure: SecureView };

function came(secure: SecureView, exchange: string): number {
  return secure.exchanges.find((one) => one.exchange === exchange)?.came ?? 0;
}

/** Devices that shared their secrets and vanished before they sent a masked update. */
export function vanished(secure: SecureView): number {
  const masking = secure.exchanges.find((one) => one.exchange === "mask");
  return masking ? Math.max(0, came(secure, "share") - masking.came) : 0;
}

/** Who did not come to an exchange that has ended. Two of them end as soon as enough came, so nobody is awaited in vain there. */
export function missing(one: ExchangeView): string {
  const gone = one.expected - one.came;
  if (one.ended_at == null || gone <= 0) return "";
  if (one.came >= one.needed && (one.exchange === "agree" || one.exchange === "unmask")) return `${count(gone)} more not needed`;
  return `${count(gone)} vanished, or came too late`;
}

/** What is said wherever people may take a sum for anonymous, as the command line does. */
export const STILL_READ = "Without noise, who makes the model can shape it so that single training examples can be read out of the sum.";

function range(sizes: readonly number[]): string {
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  return least === most ? count(least) : `${count(least)} to ${count(most)}`;
}

/** What is said of private runs instead. */
function noised(noise: number): string {
  return `Each sum has noise of ${Number(noise.toPrecision(4))} times the clip in it, that of its devices, for whoever looks at it.`;
}

/** As `quorate rounds --secure` says it. */
export function seen(round: SecureRound): string {
  const { secure } = round;
  if (!secure.opened)
    return "The coordinator saw which devices sent which messages, when and how long; it could see no update and no sum of updates.";
  const gone = vanished(secure);
  const recovered = gone ? ` ${count(gone)} vanished before they masked, and their masks were removed from the sum.` : "";
  const sums = secure.sums ?? [];
  const weight = `here ${count(round.weight)}, rounded`;
  const [saw, fewer] = sums.length
    ? [
        `the sums of ${count(sums.length)} of ${count(secure.groups ?? 1)} groups, of ${range(sums)} updates each, their total weights (${weight}, together), and which devices are in each`,
        " than one group's",
      ]
    : [`the sum of ${count(came(secure, "mask"))} updates, its total weight (${weight}), and which devices are in it`, ""];
  const fell = sums.length && secure.fallen ? ` Of ${count(secure.fallen)} more it may have seen the sum as well, which is not in the model.` : "";
  return (
    `The coordinator saw ${saw}; it could see no single update, and no sum of fewer${fewer}, ` +
    `as long as no more devices collude than the plan allows for.${recovered}${fell} ${secure.noise ? noised(secure.noise) : STILL_READ}`
  );
}
