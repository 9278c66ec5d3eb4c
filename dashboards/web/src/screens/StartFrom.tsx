// What a new run starts from: a checkpoint of a run that is here, or a file.
import { type ChangeEvent, useEffect, useId, useState } from "react";
import { put, Refusal } from "../api/client";
import type { CheckpointView } from "../api/types";
import { Command, Panel, Problem } from "../components/parts";
import { bytes, short } from "../format";
import { useLive, useResource, useSession } from "../live/context";
import { inOrder } from "../live/state";
import type { Start } from "../route";
import { lineOf } from "../useRun";

/** A checkpoint that the coordinator has. */
export interface Initial {
  digest: string;
  /** That this browser has its file; absent where it is a checkpoint of a run that is seen. */
  proof?: string;
  /** Where it comes from, in words. */
  origin: string;
}

interface Props {
  from: Start | null;
  initial: Initial | null;
  onInitial: (initial: Initial | null) => void;
  /** As they are typed. */
  statistics: string;
  onStatistics: (typed: string) => void;
}

const FILE = "a file";

export function StartFrom({ from, initial, onInitial, statistics, onStatistics }: Props) {
  const id = useId();
  const live = useLive();
  const runs = inOrder(live.runs).filter((run) => !run.flower);
  const [source, setSource] = useState(from?.run ?? "");
  const choose = (event: ChangeEvent<HTMLSelectElement>) => {
    onInitial(null);
    setSource(event.target.value);
  };
  const run = live.runs[source];
  return (
    <Panel title="Its first model" note={initial ? <code title={initial.digest}>{short(initial.digest)}</code> : "required"}>
      <div className="filters">
        <select aria-label="Start from" value={source} onChange={choose}>
          <option value="">choose what it starts from</option>
          <option value={FILE}>a file of yours</option>
          {runs.map((one) => (
            <option key={one.run} value={one.run}>{`a checkpoint of ${one.run}`}</option>
          ))}
        </select>
        {run && <Version key={run.run} run={run.run} newest={run.version} wanted={from?.run === run.run ? from.version : null} onInitial={onInitial} />}
        {source === FILE && <Upload onInitial={onInitial} />}
      </div>
      {run && <p className="note">The new run has a line of checkpoints of its own, which begins with this one. The line of {run.run} stays as it is: a line never forks.</p>}
      {source && (
        <div className="plan-field apart">
          <label htmlFor={id}>statistics</label>
          <input id={id} spellCheck={false} autoComplete="off" placeholder={run ? `as in ${run.run}, else by names` : "by names"} value={statistics} onChange={(event) => onStatistics(event.target.value)} />
          <p className="note">
            Tensors that are no parameters, such as running means: names or patterns, as in <code>*.mean *.var{">"}=0</code>, where one is never below 0; <code>none</code> where there are none. What the learner of the devices says must be the same.
          </p>
        </div>
      )}
      {!source && (
        <p className="note">
          Or let the learner make it, on a machine that has the learner: <Command text="quorate run create plan.toml" />
        </p>
      )}
    </Panel>
  );
}

interface VersionProps {
  run: string;
  newest: number;
  wanted: number | null;
  onInitial: (initial: Initial) => void;
}

function Version({ run, newest, wanted, onInitial }: VersionProps) {
  const line = useResource<CheckpointView[]>(`${run} ${newest}`, (signal) => lineOf(run, null, signal));
  const [version, setVersion] = useState<number | null>(wanted);
  const found = line.data ?? [];
  const shown = found.find((one) => one.version === (version ?? found.at(-1)?.version));
  useEffect(() => {
    if (shown) onInitial({ digest: shown.digest, origin: `${run}, version ${shown.version}` });
    // biome-ignore lint: the rest follows from which checkpoint it is
  }, [shown?.digest, shown?.version]);
  if (line.error) return <Problem text={line.error} />;
  if (!line.data) return <p className="note">Loading …</p>;
  if (!shown) return <Problem text={`there is no version ${wanted} of ${run}`} />;
  return (
    <select aria-label="Version" value={shown.version} onChange={(event) => setVersion(Number(event.target.value))}>
      {[...found].reverse().map((one) => (
        <option key={one.version} value={one.version}>{`version ${one.version}, ${bytes(one.bytes)}`}</option>
      ))}
    </select>
  );
}

function Upload({ onInitial }: { onInitial: (initial: Initial | null) => void }) {
  const { ended } = useSession();
  const [said, setSaid] = useState<{ text: string; wrong: boolean } | null>(null);
  const send = async (file: File | undefined) => {
    onInitial(null);
    if (!file) return;
    setSaid({ text: `Uploading ${file.name} …`, wrong: false });
    try {
      const { digest, proof } = await uploaded(file);
      onInitial({ digest, proof, origin: file.name });
      setSaid({ text: `${file.name}, ${bytes(file.size)}: it is there.`, wrong: false });
    } catch (error) {
      if (error instanceof Refusal && error.needsLogin) ended();
      else setSaid({ text: (error as Error).message, wrong: true });
    }
  };
  return (
    <>
      <input type="file" aria-label="Checkpoint file" accept=".safetensors" onChange={(event) => void send(event.target.files?.[0])} />
      {said && (said.wrong ? <Problem text={said.text} /> : <p role="status">{said.text}</p>)}
    </>
  );
}

const POSSESSION = new TextEncoder().encode("quorate: the sender has this checkpoint\n");

/** Sends the file; returns its digest, SHA-256, and the proof of having it (`init_proof` of the API). Browsers compute none for pages that came
 *  over a network in clear. */
async function uploaded(file: File): Promise<{ digest: string; proof: string }> {
  if (!crypto.subtle) throw new Error("this page came without TLS, so the browser computes no digest: use `quorate run create PLAN --init FILE`");
  const content = await file.arrayBuffer();
  const digest = await sha256(content);
  const proof = await sha256(await new Blob([POSSESSION, content]).arrayBuffer());
  await put("/v1/checkpoints/{digest}", content, { digest });
  return { digest, proof };
}

async function sha256(content: ArrayBuffer): Promise<string> {
  const hashed = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(hashed, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
