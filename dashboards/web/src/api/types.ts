// The messages of the API, by the names that they have there. `schema.d.ts` is generated from the API's description.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type RunView = Schemas["RunView"];
export type RoundView = Schemas["RoundView"];
export type Funnel = Schemas["Funnel"];
export type FlowerSummary = Schemas["FlowerSummary"];
export type SecureView = Schemas["SecureView"];
export type ExchangeView = Schemas["ExchangeView"];
export type CheckpointView = Schemas["CheckpointView"];
export type MetricView = Schemas["MetricView"];
export type AuditView = Schemas["AuditView"];
export type AuditHeadView = Schemas["AuditHeadView"];
export type AttemptView = Schemas["AttemptView"];
export type DeviceView = Schemas["DeviceView"];
export type FleetView = Schemas["FleetView"];
export type SystemView = Schemas["SystemView"];
export type Me = Schemas["Me"];
export type LoginWays = Schemas["LoginWays"];
export type Role = Me["grants"][number]["role"];
export type Lane = Schemas["Lane"];
export type LaneBucket = Schemas["LaneBucket"];
export type RunParticipation = Schemas["RunParticipation"];
export type DeviceParticipation = Schemas["DeviceParticipation"];
export type PlanView = Schemas["PlanView"];
export type RunPrivacy = Schemas["RunPrivacy"];
export type CostLine = Schemas["CostLine"];
export type DeviceDetail = Schemas["DeviceDetail"];
export type LanesView = Schemas["LanesView"];
export type LeaseRecord = Schemas["LeaseRecord"];
export type LeasesView = Schemas["LeasesView"];
export type WorkerView = Schemas["WorkerView"];
