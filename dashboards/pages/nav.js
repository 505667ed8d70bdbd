// In MLflow's page: a link to ours; and, where the user did not choose otherwise, its view of runs without the assistant.
const chosen = {
  "mlflow.workflowType_v1": '"machine_learning"',
  "mlflow.assistant.panelOpen_v1": "false",
  "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
};
for (const [key, value] of Object.entries(chosen)) {
  if (localStorage.getItem(key) === null) localStorage.setItem(key, value);
}
addEventListener("load", () => {
  const link = Object.assign(document.createElement("a"), { href: "/paribus/", textContent: "paribus" });
  link.style = "position:fixed;bottom:12px;left:12px;z-index:9999;background:#0b5394;color:#fff;padding:8px 14px;"
    + "border-radius:6px";
  document.body.append(link);
});
