"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const followScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", followScheme);
followScheme();

// Swagger UI gives no names to the fields of parameters and bodies, to the choice of a server, and to buttons that copy.
const nameFields = () => {
  for (const field of document.querySelectorAll(":is(select, input, textarea):not([aria-label])")) {
    const isServer = field.id === "servers";
    if (!isServer && field.labels?.length > 0) continue;
    const parameter = field.closest("[data-param-name]")?.dataset.paramName;
    field.ariaLabel = parameter ?? (isServer ? "Server" : "Request body");
  }
  for (const button of document.querySelectorAll("button:empty:not([aria-label])")) button.ariaLabel = "Copy";
};
new MutationObserver(nameFields).observe(document.getElementById("swagger-ui"), { childList: true, subtree: true });

SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: new URL("../api/v3/openapi.json", location).pathname,
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  // Credentials are not stored.
  persistAuthorization: false,
  tryItOutEnabled: true,
  // The validator is on another host.
  validatorUrl: null,
});
