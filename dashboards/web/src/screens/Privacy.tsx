// The place of the privacy budget.
import { Panel } from "../components/parts";

export function Privacy() {
  return (
    <Panel title="Privacy budget">
      <p className="plain">No accountant is there yet: rounds are not differentially private, so there is no budget to show.</p>
    </Panel>
  );
}
