// The parts of ECharts that this page uses. Tooltips are drawn on the canvas: those of HTML need styles that the policy refuses.
import { BarChart, LineChart } from "echarts/charts";
import { AriaComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent } from "echarts/components";
import { init, use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([LineChart, BarChart, GridComponent, TooltipComponent, LegendComponent, MarkLineComponent, AriaComponent, CanvasRenderer]);

export { init };
export type { EChartsCoreOption as Option } from "echarts/core";
