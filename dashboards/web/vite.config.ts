// Addresses are relative, so that the page works under any path. Nothing is inlined: the policy has no `data:`.
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../built",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 1200,
    rollupOptions: { output: { manualChunks: (id) => (/node_modules\/(echarts|zrender)/.test(id) ? "charts" : null) } },
  },
});
