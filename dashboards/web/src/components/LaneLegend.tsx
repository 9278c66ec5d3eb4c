// What the signs of lanes mean.
import type { ReactNode } from "react";
import { STEPS, type Step } from "../lanes";

export function LaneLegend({ closed, children }: { closed: boolean; children?: ReactNode }) {
  return (
    <div className="lane-legend">
      {(Object.keys(STEPS) as Step[]).map((step) => (
        <span key={step}>
          <span className="swatch">
            <span className={`step step-${step}`} />
          </span>{" "}
          {STEPS[step]}
        </span>
      ))}
      {closed && (
        <span>
          <span className="swatch">
            <span className="closing" />
          </span>{" "}
          the round closes
        </span>
      )}
      {children}
    </div>
  );
}
