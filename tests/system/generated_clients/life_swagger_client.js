// Manages a pet, an image, an order and a user with swagger-client, which reads the document from the service, in both
// versions of OpenAPI.
const SwaggerClient = require("swagger-client");
const assert = require("node:assert/strict");

const [host, key, image] = process.argv.slice(2);

async function live(document) {
    const url = `${host}/api/v3/${document}`;
    const { apis } = await SwaggerClient({ url, authorizations: { api_key: key } });
    const fails = (status, call) => assert.rejects(call, (error) => error.status === status && error.response.body.code === status);
    const send = (requestBody, more) => [{}, { requestBody, ...more }];

    const { body: pet } = await apis.pet.addPet(...send({ name: "Rex", tags: [{ name: document }] }));
    const petId = pet.id;
    assert.equal((await apis.pet.updatePet(...send({ ...pet, name: "Max" }))).body.name, "Max");
    const { body: found } = await apis.pet.findPetsByTags({ tags: [document], limit: 5 });
    assert.deepEqual(found.map(({ id }) => id), [petId]);

    const bytes = Buffer.from(image, "base64");
    const form = { file: new File([bytes], "rex.png"), additionalMetadata: "from the left" };
    const upload = { requestBody: form, requestContentType: "multipart/form-data" };
    const { body: uploaded } = await apis.pet.uploadFile({ petId }, upload);
    assert.ok(uploaded.message.includes("from the left"), uploaded.message);
    const got = await apis.pet.getImage({ petId, imageId: uploaded.imageId });
    assert.equal((await got.data.arrayBuffer()).byteLength, bytes.length);
    await apis.pet.deleteImage({ petId, imageId: uploaded.imageId });

    const { body: order } = await apis.store.placeOrder(...send({ petId }));
    await apis.store.deleteOrder({ orderId: order.id });
    await fails(404, apis.store.getOrderById({ orderId: order.id }));

    const login = { username: `swagger-${document}`, password: "correct horse battery staple" };
    await apis.user.createUser(...send(login));
    const { body: token } = await apis.user.createSession(...send(login));
    const { apis: own } = await SwaggerClient({ url, authorizations: { bearer: { value: token } } });
    assert.equal((await own.user.getUserByName(login)).body.username, login.username);
    await own.user.logoutUser();
    await fails(401, own.user.getUserByName(login));
    await apis.user.deleteUser(login);
    await apis.pet.deletePet({ petId });
    await fails(404, apis.pet.getPetById({ petId }));
}

live("openapi.json").then(() => live("openapi-3.0.json"));
