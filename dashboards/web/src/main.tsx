import { createRoot } from "react-dom/client";
import { App } from "./App";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/parts.css";
import "./styles/funnel.css";
import "./styles/screens.css";
import "./styles/lanes.css";
import "./styles/start.css";
import "./styles/compare.css";

const root = document.getElementById("root");
if (root) createRoot(root).render(<App />);
