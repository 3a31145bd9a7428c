"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const followScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", followScheme);
followScheme();

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
