// Manages a pet, an image, an order and a user with openapi-fetch and the types that openapi-typescript generates.
import createClient from "openapi-fetch";
import type { paths } from "./openapi_typescript";

declare const process: { argv: string[] };
const [host, key, image] = process.argv.slice(2);
const baseUrl = `${host}/api/v3`;

function check(holds: boolean, what: unknown): void {
    if (!holds) throw new Error(JSON.stringify(what));
}

/** Returns the body of a successful response. */
async function ok<T>(call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
    const { data, error, response } = await call;
    check(response.ok && data !== undefined, error);
    return data as T;
}

async function fails(status: number, call: Promise<{ error?: { code: number }; response: Response }>): Promise<void> {
    const { error, response } = await call;
    check(response.status === status && error?.code === status, `no ${status}`);
}

async function main(): Promise<void> {
    const admin = createClient<paths>({ baseUrl, headers: { api_key: key } });
    // Fields that the service sets by default are optional.
    const { id } = await ok(admin.POST("/pet", { body: { name: "Rex", tags: [{ name: "openapi-fetch" }] } }));
    const path = { petId: id };
    await ok(admin.PUT("/pet", { body: { id, name: "Max", status: "available" } }));
    check((await ok(admin.GET("/pet/{petId}", { params: { path } }))).name === "Max", "not replaced");
    const query = { status: ["available" as const] };
    const found = await ok(admin.GET("/pet/findByStatus", { params: { query } }));
    check(found.some((pet) => pet.id === id), "not found by status");

    const bytes = Uint8Array.from(atob(image ?? ""), (byte) => byte.charCodeAt(0));
    const upload = { params: { path }, body: "", bodySerializer: () => bytes, headers: { "Content-Type": "image/png" } };
    const { imageId } = await ok(admin.POST("/pet/{petId}/uploadImage", upload));
    const one = { params: { path: { ...path, imageId } } };
    const got = await ok(admin.GET("/pet/{petId}/images/{imageId}", { ...one, parseAs: "arrayBuffer" }));
    check(got.byteLength === bytes.length, "another image");
    await ok(admin.DELETE("/pet/{petId}/images/{imageId}", one));

    const order = await ok(admin.POST("/store/order", { body: { petId: id } }));
    check(order.quantity === 1 && !order.complete, order);
    const ordered = { params: { path: { orderId: order.id } } };
    await ok(admin.PATCH("/store/order/{orderId}", { ...ordered, body: { status: "approved" } }));
    await ok(admin.DELETE("/store/order/{orderId}", ordered));
    await fails(404, admin.GET("/store/order/{orderId}", ordered));

    const login = { username: "openapi-fetch", password: "correct horse battery staple" };
    await ok(admin.POST("/user", { body: login }));
    const token = await ok(admin.POST("/user/login", { body: login }));
    const own = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
    const account = { params: { path: { username: login.username } } };
    check((await ok(own.PUT("/user/{username}", { ...account, body: { firstName: "Ada" } }))).firstName === "Ada", "not changed");
    await ok(own.GET("/user/logout"));
    await fails(401, own.GET("/user/{username}", account));
    await ok(admin.DELETE("/user/{username}", account));
    await ok(admin.DELETE("/pet/{petId}", { params: { path } }));
    await fails(404, admin.GET("/pet/{petId}", { params: { path } }));
}

void main();
